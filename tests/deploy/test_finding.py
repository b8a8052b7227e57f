"""Where a receiver finds its sender: what is believed, in which order, and what is no address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from omni_async import ConfigError, UsageError
from omni_async.deploy.connectors import Connector
from omni_async.deploy.deployment import StagePlan, Wire
from omni_async.deploy.endpoints import Counterpart
from omni_async.deploy.finding import find_sender, variable_of
from omni_async.model import EdgeName
from tests.deploy.addressed import AddressedDoubleOptions

VARIABLE = "OMNI_ASYNC_STAGE_0_HOST"
SENDER = Counterpart(1, 2)
PORT = 50051 + 2 * 2 + 1


def find(
    environ: Mapping[str, str] | None = None,
    *,
    host: str | None = None,
    resolve: Any = None,
    ids: tuple[str, ...] = ("0", "1"),
    sender: Mapping[str, Any] | None = None,
    **receiver: Any,
) -> tuple[str, int]:
    begin, end = (
        Connector("AddressedDouble", AddressedDoubleOptions.model_validate(options))
        for options in (sender or {}, receiver)
    )
    wire = Wire(EdgeName(ids[0], ids[1]), begin, end)
    stages = {id: StagePlan(id, (), (), True, host, 4, 2) for id in ids}
    return find_sender(stages, wire, SENDER, environ or {}, resolve)


def test_the_first_that_tells_is_believed() -> None:
    told: list[tuple[Any, ...]] = []

    def resolve(*who: Any) -> tuple[str, int]:
        told.append(who)
        return "resolved", 1

    known: dict[str, Any] = {
        "resolve": resolve,
        "environ": {VARIABLE: "environment"},
        "sender_host": "written",
        "host": "of-the-stage",
        "sender": {"host": "of-the-connector"},
    }
    found = []
    while True:
        found.append(find(**known))
        if not known:
            break
        del known[next(iter(known))]
    assert found == [
        ("resolved", 1),
        ("environment", PORT),
        ("written", PORT),
        ("of-the-stage", PORT),
        ("of-the-connector", PORT),
        ("auto", PORT),
    ]
    assert told == [("0", 1, 2)]


def test_a_port_that_is_told_is_final() -> None:
    assert find(sender_zmq_port=7) == ("auto", 7)
    assert find({VARIABLE: "node:8"}, sender_zmq_port=7) == ("node", 8)
    assert find({VARIABLE: "node"}, sender_zmq_port=7) == ("node", 7)


def test_the_senders_base_port_counts() -> None:
    assert find(sender={"zmq_port": 600}, zmq_port=900) == ("auto", 600 + PORT - 50051)


@pytest.mark.parametrize("host", ["auto", "0.0.0.0", "*", ""])
def test_a_host_that_names_nobody_is_passed_over(host: str) -> None:
    assert find(host=host, sender={"host": host}, sender_host=host) == ("auto", PORT)


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("0", "OMNI_ASYNC_STAGE_0_HOST"),
        ("talker", "OMNI_ASYNC_STAGE_TALKER_HOST"),
        ("code2wav-b.1", "OMNI_ASYNC_STAGE_CODE2WAV_B_1_HOST"),
        ("réq", "OMNI_ASYNC_STAGE_R_Q_HOST"),
    ],
)
def test_a_stage_has_its_variable(stage: str, name: str) -> None:
    assert variable_of(stage) == name
    assert find({name: "node"}, ids=(stage, "end"))[0] == "node"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node", "node", PORT),
        (" node:5000 ", "node", 5000),
        ("10.0.0.5:1", "10.0.0.5", 1),
        ("[::1]", "::1", PORT),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
        ("", "auto", PORT),
        ("  ", "auto", PORT),
    ],
)
def test_the_environment_tells_a_host_and_maybe_a_port(text: str, host: str, port: int) -> None:
    assert find({VARIABLE: text}) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["::1", "fe80::1:50051", "node:", ":5", "node:0", "node:65536", "node:five", "node:123456",
     "tcp://node:5", "[node", "node]", "[]", "two nodes", "auto", "0.0.0.0:5", "[::]:5", "node:²"],
)  # fmt: skip
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"variable {VARIABLE} has to be a host or host:port"):
        find({VARIABLE: text})


def test_a_variable_that_two_stages_share_says_nothing() -> None:
    ids = ("a-b", "end", "a_b")
    assert find(ids=ids) == ("auto", PORT)
    with pytest.raises(ConfigError, match=r"OMNI_ASYNC_STAGE_A_B_HOST could mean .* a-b, a_b;"):
        find({"OMNI_ASYNC_STAGE_A_B_HOST": "node"}, ids=ids)


@pytest.mark.parametrize(
    "answer",
    [None, "node:5", ("node",), ("node", "5"), ("node", 0), ("node", 65536), ("node", True),
     ("", 5), ("two nodes", 5), (b"node", 5), ("auto", 5), ("[::1]", 5), ("node", 5, 6)],
)  # fmt: skip
def test_what_resolve_returns_is_checked(answer: Any) -> None:
    with pytest.raises(UsageError, match=r"\(host, port\) of a sender of stage 0"):
        find(resolve=lambda *_: answer)


def test_resolve_may_return_a_list() -> None:
    assert find(resolve=lambda *_: ["::1", 5]) == ("::1", 5)


def test_an_async_resolve_is_refused() -> None:
    async def resolve(*_: Any) -> tuple[str, int]:
        return "node", 5

    with pytest.raises(UsageError, match="a plain function, not an async one"):
        find(resolve=resolve)
