"""Events reach what the application set up, and nothing else is set up by them."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from omni_async import observe
from omni_async.observe import get_logger, span


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    level = logging.getLogger("omni_async").level
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    logging.getLogger("omni_async").setLevel(level)


def test_without_structlog_set_up_events_are_standard_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = get_logger("omni_async.pool").bind(edge="0->1")
    with caplog.at_level("WARNING", "omni_async"):
        log.warning("pool.full", nbytes=5)
        log.info("nobody.hears")
    [record] = caplog.records
    assert record.name == "omni_async.pool"
    assert record.getMessage() == "pool.full edge='0->1' nbytes=5"
    assert record.funcName == "test_without_structlog_set_up_events_are_standard_records"


def test_below_its_level_nothing_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("omni_async.pool")
    with caplog.at_level("CRITICAL", "omni_async"):
        for report in (log.debug, log.info, log.warning, log.error):
            report("nobody.hears")
    assert caplog.records == []


def test_a_percent_sign_in_an_event_is_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR", "omni_async"):
        get_logger("x").error("100 %d")
    assert caplog.records[0].getMessage() == "100 %d"
    assert caplog.records[0].name == "omni_async.x"


def test_with_structlog_set_up_events_go_there_with_their_fields() -> None:
    seen: list[dict[str, Any]] = []

    def keep(_: object, method: str, event: Any) -> Any:
        seen.append({"method": method, **event})
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    logging.getLogger("omni_async").setLevel("DEBUG")
    log = get_logger("omni_async.shm").bind(key="req-1")
    log.debug("a")
    log.info("b", nbytes=1)
    log.warning("c")
    log.error("d", key="other")
    assert [(one["method"], one["event"], one["key"]) for one in seen] == [
        ("debug", "a", "req-1"),
        ("info", "b", "req-1"),
        ("warning", "c", "req-1"),
        ("error", "d", "other"),
    ]
    assert {one["logger"] for one in seen} == {"omni_async.shm"}


def test_configure_writes_json_lines_to_the_stream_and_keeps_the_level() -> None:
    out = io.StringIO()
    observe.configure("INFO", json=True, stream=out)
    log = get_logger("omni_async.cli")
    log.debug("hidden")
    log.info("shown", edge="0->1")
    [line] = out.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "shown", "edge": "0->1", "level": "info", "logger": "omni_async.cli"}


def test_configure_for_people_writes_to_stderr_only(capfd: pytest.CaptureFixture[str]) -> None:
    observe.configure("WARNING")
    get_logger("omni_async.cli").warning("peer.silent", seconds=2.0)
    out, err = capfd.readouterr()
    assert out == ""
    assert "peer.silent" in err
    assert "seconds=2.0" in err


def test_configure_refuses_a_level_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="LOUD"):
        observe.configure("LOUD")


def test_events_need_no_structlog() -> None:
    code = (
        "import sys; from omni_async.observe import get_logger\n"
        "get_logger('omni_async.x').warning('lost', peer='a b')\n"
        "assert 'structlog' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == "lost peer='a b'\n"


def test_a_span_tells_start_finish_outcome_and_time(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("omni_async.transport")
    with caplog.at_level("DEBUG", "omni_async"):
        with span(log, "put", edge=("0", "1"), key="req-1") as one:
            one.note(nbytes=7)
        with (
            pytest.raises(LookupError),
            span(log, "get", edge=("0", "1"), key="req-2"),
        ):
            raise LookupError
    put, put_end, get, get_end = [record.getMessage() for record in caplog.records]
    assert put == "put.start edge='0->1' key='req-1'"
    assert put_end.startswith("put.finish edge='0->1' key='req-1' outcome='ok' seconds=")
    assert put_end.endswith(" nbytes=7")
    assert get == "get.start edge='0->1' key='req-2'"
    assert "outcome='LookupError'" in get_end


def test_a_span_is_silent_while_debug_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("omni_async.transport")
    assert not log.enabled(logging.DEBUG)
    with span(log, "put", edge=("0", "1"), key="a") as one:
        one.note(nbytes=7)
    assert span(log, "put", edge=("0", "1"), key="b") is one
    assert caplog.records == []
