"""Opening and ending: what is missing is said in time, and nothing stays behind however somebody ends."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_async import BackendUnavailable
from omni_async.backends.yuanrong.line import ClientLine
from omni_async.cli.servers.yuanrong import YuanrongWorker
from tests.descriptors import open_descriptors
from tests.stores import loaded_or_skip

from .conftest import Open, StartAgent, alive
from .desk import YuanrongDesk, opened

STARTS = 3.0
"""Seconds that a process may take to start on a machine that many share."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes of clients that were started."""
    pids: list[int] = []
    begin = ClientLine.__init__

    def noted(line: ClientLine, *args: Any) -> None:
        begin(line, *args)
        pids.append(line.pid)

    monkeypatch.setattr(ClientLine, "__init__", noted)
    return pids


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.fixture
def installed() -> None:
    loaded_or_skip("yr.datasystem.kv_client")


@pytest.mark.usefixtures("installed")
async def test_nobody_is_there(free_port: int, started: list[int]) -> None:
    began = time.monotonic()
    with pytest.raises(BackendUnavailable) as caught:
        await opened({"port": free_port, "setup_timeout": 0.5})
    assert time.monotonic() - began < 0.5 + STARTS
    assert "'127.0.0.1'" in str(caught.value)
    assert str(free_port) in str(caught.value)
    assert str(caught.value.remedy).startswith("dscli start -w --worker_address 127.0.0.1:")
    assert caught.value.backend == "YuanrongConnector"
    assert not any(map(alive, started))


@pytest.mark.usefixtures("installed")
async def test_somebody_else_is_there(started: list[int]) -> None:
    """The vendor's client would wait for 3 s at least."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="no datasystem worker answers"):
            await opened({"port": server.getsockname()[1], "setup_timeout": 1.0})
        assert time.monotonic() - began < 1.0 + STARTS
    assert not any(map(alive, started))


@pytest.mark.usefixtures("installed")
async def test_a_host_that_there_is_not(started: list[int]) -> None:
    with pytest.raises(BackendUnavailable, match=r"no-such-host\.invalid"):
        await opened({"host": "no-such-host.invalid", "setup_timeout": 0.2})
    assert not any(map(alive, started))


async def test_a_host_by_its_name(yuanrong_worker: YuanrongWorker, open_desk: Open) -> None:
    """The vendor takes addresses only."""
    desk = await open_desk(yuanrong_worker, host="localhost")
    assert not await desk.there("nothing")
    assert desk.store.health()["host"] == "localhost"


async def test_a_worker_that_starts_later(own_worker: YuanrongWorker, open_desk: Open) -> None:
    own_worker.port("worker")
    opening = asyncio.ensure_future(open_desk(own_worker, setup_timeout=30.0))
    await asyncio.sleep(1)
    assert not opening.done()
    own_worker.begin()
    await asyncio.to_thread(own_worker.wait)
    ready = time.monotonic()
    desk = await opening
    assert time.monotonic() - ready < STARTS
    assert not await desk.there("nothing")


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("raise ImportError('no such library')", "no such library"),
        ("KVClient = object", "WriteMode"),
        (
            "class WriteMode:\n  NONE_L2_CACHE = 1\n"
            "class KVClient:\n  def __init__(self, host, port): pass",
            "another release is needed",
        ),
    ],
)
async def test_no_usable_package(
    package: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    for folder in ("yr/datasystem", "datasystem"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text(package)
    monkeypatch.syspath_prepend(str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(BackendUnavailable, match=said) as caught:
            await opened({"port": server.getsockname()[1]})
    assert caught.value.remedy == "pip install 'omni-async[yuanrong]'"
    assert not any(map(alive, started))


async def test_an_older_package(
    yuanrong_worker: YuanrongWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_desk: Open,
) -> None:
    """Before 0.8 it was called ``datasystem``."""
    found = importlib.util.find_spec("yr.datasystem")
    assert found is not None
    assert found.origin is not None
    origin = str(Path(found.origin).parents[2])
    (tmp_path / "yr").mkdir()
    (tmp_path / "yr" / "__init__.py").write_text("")
    (tmp_path / "datasystem.py").write_text(
        f"import sys, yr\nyr.__path__.append({origin + '/yr'!r})\n"
        "from yr.datasystem import KVClient, WriteMode\n"
        "sys.modules['yr.datasystem'].older = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    desk = await open_desk(yuanrong_worker)
    assert not await desk.there("nothing")


async def test_opening_is_cancelled(free_port: int, started: list[int]) -> None:
    opening = asyncio.ensure_future(opened({"port": free_port}))
    for _ in range(5):
        await asyncio.sleep(0)
    assert started
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not any(map(alive, started))


async def test_closing_with_the_worker_gone(own_worker: YuanrongWorker, open_desk: Open) -> None:
    """The vendor's client takes 15 s to give it up."""
    own_worker.start()
    desk = await open_desk(own_worker)
    pid = desk.line.pid
    own_worker.kill()
    began = time.monotonic()
    await desk.store.close()
    assert time.monotonic() - began < 2.2
    limit = time.monotonic() + STARTS
    while alive(pid):
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)


async def test_abort(desk: YuanrongDesk) -> None:
    pid = desk.line.pid
    waiting = asyncio.ensure_future(desk.there("nothing"))
    await asyncio.sleep(0)
    desk.store.abort()
    assert not alive(pid)
    with pytest.raises(Exception, match="closed"):
        await waiting


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("served", [True, False])
async def test_the_process_that_uses_it_is_killed(
    own_worker: YuanrongWorker, start_agent: StartAgent, shared: bool, served: bool
) -> None:
    """Also when its end of the socket stays open in some child of its own, and when the worker is
    gone, which the vendor's client takes minutes to see."""
    own_worker.start()
    agent = await start_agent(own_worker)
    client = await agent.do("client")
    if shared:
        assert alive(await agent.do("share"))
    if not served:
        own_worker.kill()
    os.kill(agent.pid, signal.SIGKILL)  # and not its group
    limit = time.monotonic() + 4 * STARTS
    while alive(client):
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)


async def test_signals_for_everybody_do_not_end_the_client(desk: YuanrongDesk, name: str) -> None:
    """A terminal's and a service's: who uses the client may well have something to put yet."""
    pid = desk.line.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    await desk.put(name, b"after")
    assert await desk.get(name) == b"after"
    assert desk.line.pid == pid
    await desk.delete(name)


async def test_nothing_is_written_anywhere(
    yuanrong_worker: YuanrongWorker,
    open_desk: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("DATASYSTEM_CLIENT_LOG_DIR", raising=False)
    desk = await open_desk(yuanrong_worker)
    await desk.put(name, b"x" * 100_000)
    assert await desk.get(name) is not None
    await desk.delete(name)
    await desk.store.close()
    assert list((tmp_path / "home").iterdir()) == []
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_logs_go_where_the_user_wants_them(
    yuanrong_worker: YuanrongWorker,
    open_desk: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATASYSTEM_CLIENT_LOG_DIR", str(tmp_path))
    desk = await open_desk(yuanrong_worker)
    await desk.store.close()
    assert [file.name for file in tmp_path.glob("*.log")]


async def test_no_descriptor_and_no_thread_stays(
    yuanrong_worker: YuanrongWorker, open_desk: Open
) -> None:
    async def once() -> None:
        desk = await open_desk(yuanrong_worker)
        os.kill(desk.line.pid, signal.SIGKILL)
        with pytest.raises(Exception, match="ended by itself"):
            await desk.there("nothing")
        assert not await desk.there("nothing")
        await desk.store.close()
        desk.block.close()

    await once()
    before = set(open_descriptors()), threading.active_count()
    await once()
    await once()
    limit = time.monotonic() + STARTS  # a process that was killed may be late to go
    while len(open_descriptors()) > len(before[0]):
        assert time.monotonic() < limit
        await asyncio.sleep(0.05)
    assert threading.active_count() <= before[1]


def test_the_client_needs_little() -> None:
    """It starts in a tenth of a second, without what it does not use."""
    code = "import omni_async.backends.yuanrong.client_process, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert not {"torch", "pydantic", "numpy", "asyncio", "yr"} & set(loaded.stdout.split())
