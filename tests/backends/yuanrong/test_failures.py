"""What goes wrong: each with an error of its own kind, in time, and traffic afterwards."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time

import pytest

from omni_async import EngineFault, PayloadTooLarge, PoolExhausted, ServerUnreachable
from omni_async.abc import Piece
from omni_async.cli.servers.yuanrong import YuanrongWorker

from .conftest import MEMORY, MIB, Open, alive
from .desk import YuanrongDesk

REQ_TIMEOUT = 2.0
PATIENCE = 3.0
"""Seconds that a busy machine may take on top of a limit."""
BIG = 40 * MIB


async def fill(desk: YuanrongDesk) -> list[str]:
    """Put until there is no room; what was put."""
    names: list[str] = []
    while len(names) < 20:
        try:
            await desk.put_here(f"full-{len(names)}:0_1", BIG)
        except PoolExhausted:
            break
        names.append(f"full-{len(names)}:0_1")
    assert 0 < len(names) < 20
    return names


async def test_a_full_worker(own_worker: YuanrongWorker, open_desk: Open) -> None:
    """The vendor's client would try for as long as a request may take; everybody else would wait."""
    own_worker.start()
    desk = await open_desk(own_worker, room=BIG, req_timeout_ms=30_000)
    names = await fill(desk)
    began = time.monotonic()
    with pytest.raises(PoolExhausted, match="has no room for 41,943,040 bytes now") as caught:
        await desk.put_here("one-more:0_1", BIG)
    assert caught.value.nbytes == BIG
    assert time.monotonic() - began < 1.0 + PATIENCE
    assert await desk.store.contains([*names, "one-more:0_1"]) == [True] * len(names) + [False]
    await desk.store.delete([names[0]])
    await desk.put_here("one-more:0_1", BIG)
    assert await desk.there("one-more:0_1")


async def test_what_may_be_dropped_is_dropped(own_worker: YuanrongWorker, open_desk: Open) -> None:
    own_worker.start()
    desk = await open_desk(own_worker, room=BIG, evictable=True)
    for at in range(12):
        await desk.put_here(f"{at}:0_1", BIG)
    there = await desk.store.contains([f"{at}:0_1" for at in range(12)])
    assert there[-1]
    assert not all(there)


@pytest.mark.parametrize("pieces", [1, 2])
async def test_larger_than_the_worker(
    yuanrong_worker: YuanrongWorker, open_desk: Open, name: str, pieces: int
) -> None:
    desk = await open_desk(yuanrong_worker, room=2 * MEMORY, req_timeout_ms=int(REQ_TIMEOUT * 1000))
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(PayloadTooLarge, match="--shared_memory_size_mb") as caught:
            await desk.put_here(name, 2 * MEMORY, pieces)
        assert time.monotonic() - began < REQ_TIMEOUT + PATIENCE
        assert (caught.value.nbytes, caught.value.limit) == (2 * MEMORY, MEMORY)
    # The worker's allocator rounds up: this would fit by its size alone, but never does.
    with pytest.raises(PayloadTooLarge):
        await desk.put_here(name, MEMORY - 2 * MIB, pieces)
    assert not await desk.there(name)


async def test_a_time_that_is_over(desk: YuanrongDesk, name: str) -> None:
    with pytest.raises(EngineFault, match="its time was over"):
        await desk.store.get(name, desk.block.address, 10, timeout=-1)
    with pytest.raises(EngineFault, match="its time was over"):
        await desk.store.put(name, [Piece(desk.block.address, 1)], ttl=math.inf, timeout=-1)
    assert not await desk.there(name)


async def test_a_worker_that_is_killed_and_started_again(
    own_worker: YuanrongWorker, open_desk: Open
) -> None:
    own_worker.start()
    desk = await open_desk(own_worker, req_timeout_ms=1000)
    for at in range(3):
        await desk.put("kept:0_1", b"%d" % at * 5000)
        own_worker.kill()
        calls = [
            desk.store.contains(["kept:0_1"]),
            desk.store.get("kept:0_1", desk.block.address, MIB, timeout=30),
            desk.store.put(f"new-{at}:0_1", [Piece(desk.block.address, 100)], ttl=60, timeout=30),
            desk.store.delete(["kept:0_1"]),
        ]
        began = time.monotonic()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        # All of them together: none waits for the others first.
        assert time.monotonic() - began < 1.0 + PATIENCE
        for error in ended:
            assert isinstance(error, ServerUnreachable), error
            assert own_worker.address in str(error)
            assert "'host' and 'port'" in str(error)
        own_worker.start()
        await desk.put(f"after-{at}:0_1", b"after")
        assert await desk.get(f"after-{at}:0_1") == b"after"
        assert await desk.get("kept:0_1") is None, "what was lost is not there, and nothing else"


async def test_a_call_that_waits_lives_to_see_the_worker_again(
    own_worker: YuanrongWorker, open_desk: Open
) -> None:
    own_worker.start()
    desk = await open_desk(own_worker, req_timeout_ms=500)
    own_worker.kill()
    with pytest.raises(ServerUnreachable):
        await desk.there("x:0_1")
    desk.store._options = desk.store._options.model_copy(update={"req_timeout_ms": 20_000})
    waiting = asyncio.ensure_future(desk.there("x:0_1"))
    await asyncio.to_thread(own_worker.start)
    assert await asyncio.wait_for(waiting, PATIENCE) is False


async def test_a_worker_that_is_stopped(own_worker: YuanrongWorker, open_desk: Open) -> None:
    own_worker.start()
    desk = await open_desk(own_worker, req_timeout_ms=500)
    await desk.put("kept:0_1", b"kept")
    own_worker.stop()
    try:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(ServerUnreachable):
                await desk.put("new:0_1", b"new")
            assert time.monotonic() - began < 3.5 + PATIENCE  # a new client waits for 3 s
    finally:
        own_worker.cont()
    assert await desk.get("kept:0_1") == b"kept"


async def test_the_client_is_killed(desk: YuanrongDesk, name: str) -> None:
    await desk.put(name, b"kept" * 1000)
    for _ in range(3):
        pid = desk.line.pid
        os.kill(pid, signal.SIGSTOP)
        calls = [asyncio.ensure_future(desk.store.contains([name])) for _ in range(3)]
        calls.append(asyncio.ensure_future(desk.store.delete([name])))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, EngineFault), error
            assert not isinstance(error, ServerUnreachable)
            assert error.status == "client ended"
        # The next call starts another, which knows the memory.
        assert await desk.get(name) == b"kept" * 1000
        assert desk.line.pid != pid
        assert not alive(pid)
    await desk.delete(name)


async def test_a_client_that_answers_no_more(
    yuanrong_worker: YuanrongWorker, open_desk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.backends.yuanrong.store._SLACK", 0.0)
    desk = await open_desk(yuanrong_worker, req_timeout_ms=1000)
    pid = desk.line.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EngineFault, match="has not answered for 1 s, and was killed"):
        await desk.there("x:0_1")
    assert not alive(pid)
    assert await desk.there("x:0_1") is False


async def test_a_loop_that_was_held_up_does_not_blame_the_client(
    yuanrong_worker: YuanrongWorker, open_desk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.backends.yuanrong.store._SLACK", 0.0)
    desk = await open_desk(yuanrong_worker, req_timeout_ms=500)
    pid = desk.line.pid
    line = desk.line
    waiting = asyncio.ensure_future(desk.there("x:0_1"))
    await asyncio.sleep(0)
    time.sleep(1.5)  # noqa: ASYNC251 - that is what is tested
    line._overdue()  # uvloop looks at its timers first
    assert await waiting is False
    assert desk.line.pid == pid
