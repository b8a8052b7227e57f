"""The leak checks find what they claim to find, and name it.

In: leaks made on purpose. Out: their names.
Never: leaves one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_async.model import Health
from omni_async.pool.memory import MemfdMemory
from omni_async.testing.leaks import LeakError, no_leaks, no_leaks_blocking, quiet

Leak = Callable[[], "contextlib.AbstractContextManager[Any]"]


@contextlib.contextmanager
def _task() -> Iterator[None]:
    task = asyncio.get_running_loop().create_task(asyncio.sleep(60), name="forgotten")
    yield
    task.cancel()


@contextlib.contextmanager
def _timer() -> Iterator[None]:
    handle = asyncio.get_running_loop().call_later(60, print, "forgotten")
    yield
    handle.cancel()


@contextlib.contextmanager
def _thread() -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="forgotten")
    thread.start()
    yield
    done.set()
    thread.join()


@contextlib.contextmanager
def _descriptor() -> Iterator[None]:
    first, second = os.pipe()
    yield
    os.close(first)
    os.close(second)


@contextlib.contextmanager
def _mapping() -> Iterator[None]:
    block = MemfdMemory("forgotten").allocate(4096)
    yield
    block.close()


@contextlib.contextmanager
def _shm() -> Iterator[None]:
    path = Path(f"/dev/shm/forgotten-{os.getpid()}")
    path.write_bytes(b"x")
    yield
    path.unlink()


@contextlib.contextmanager
def _process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield
    process.communicate(b"\n")


@contextlib.contextmanager
def _socket() -> Iterator[None]:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(f"\0omni-async/kit-leak-{os.getpid()}")
    yield
    sock.close()


@pytest.mark.parametrize(
    ("leak", "kind"),
    [
        (_task, "task forgotten"),
        (_timer, "timer"),
        (_thread, "thread forgotten"),
        (_descriptor, "descriptor"),
        (_mapping, "mapping /memfd:forgotten"),
        (_shm, "file /dev/shm/forgotten"),
        (_process, "process"),
        (_socket, "socket @omni-async/kit-leak"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_kind_is_found_and_named(leak: Leak, kind: str) -> None:
    stack = contextlib.ExitStack()
    with stack:
        with pytest.raises(LeakError) as caught:
            async with no_leaks(grace=0.0, mark=f"kit-leak-{os.getpid()}"):
                stack.enter_context(leak())
        assert kind in str(caught.value)
        assert caught.value.traces


async def test_what_goes_away_in_time_is_no_leak() -> None:
    async with no_leaks(grace=5.0):
        thread = threading.Thread(target=threading.Event().wait, args=(0.1,))
        thread.start()
        _ = asyncio.get_running_loop().create_task(asyncio.sleep(0.05))


async def test_a_watched_folder(tmp_path: Path) -> None:
    with pytest.raises(LeakError, match=r"left\.sock"):
        async with no_leaks(grace=0.0, folders=[tmp_path, tmp_path / "missing"]):
            (tmp_path / "left.sock").touch()


async def test_an_error_of_the_body_is_not_hidden() -> None:
    kept = -1
    with contextlib.suppress(ZeroDivisionError):
        async with no_leaks(grace=0.0):
            kept = os.dup(0)
            _ = 1 / 0
    os.close(kept)


def test_without_a_loop() -> None:
    with no_leaks_blocking():
        asyncio.run(asyncio.sleep(0))
    kept: list[int] = []
    with pytest.raises(LeakError, match="descriptor"), no_leaks_blocking(grace=0.0):
        kept.append(os.dup(0))
    os.close(kept.pop())


async def test_gauges_that_do_not_come_down() -> None:
    class Busy:
        def health(self) -> Health:
            return Health(status="healthy", backend="double", in_flight=2, pool_used=64)

    with pytest.raises(LeakError, match=r"in_flight is 2.*pool_used is 64"):
        await quiet(Busy(), within=0.01)
    assert (await quiet(Busy(), in_flight=2, pool_used=None)).in_flight == 2
