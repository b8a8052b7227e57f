"""Holds and their queue: threads, the garbage collector, forks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni_async.pool.hold import DropQueue, Hold
from omni_async.pool.memory import PAGE, AnonymousMemory

from .conftest import settle

Array = np.ndarray[Any, np.dtype[np.uint8]]


def _uvloop() -> asyncio.AbstractEventLoop:
    uvloop = pytest.importorskip("uvloop")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@pytest.fixture(params=[asyncio.new_event_loop, _uvloop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = request.param()
    yield loop
    loop.close()


class Ground:
    """Memory with holds over it, and the tokens that came back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.block = AnonymousMemory().allocate(PAGE)
        self.heard: list[Any] = []
        self.queue = DropQueue(loop, self.heard.append)

    def hold(self, token: Any, nbytes: int = 100, offset: int = 0) -> Array:
        return np.asarray(
            Hold(self.block.address + offset, nbytes, token, self.queue, self.block.view())
        )

    def turn(self) -> None:
        self.loop.run_until_complete(settle(self.queue))


@pytest.fixture
def ground(loop: asyncio.AbstractEventLoop) -> Iterator[Ground]:
    ground = Ground(loop)
    yield ground
    ground.queue.close()


def test_the_array_is_the_memory(ground: Ground) -> None:
    array = ground.hold("token", 10, offset=64)
    assert (array.dtype.str, array.shape, array.flags.writeable) == ("|u1", (10,), True)
    array[:] = range(10)
    assert bytes(ground.block.view(64, 10)) == bytes(range(10))


def test_the_token_comes_when_the_last_view_has_died(ground: Ground) -> None:
    torch = pytest.importorskip("torch")
    array = ground.hold("token")
    tensor = torch.from_numpy(array)[16:48].view(torch.float32)
    part = array[3:7].view(np.uint16)[1:]
    del array
    ground.turn()
    assert ground.heard == []
    del part
    ground.turn()
    assert ground.heard == []
    del tensor
    assert ground.heard == []  # nobody is called from a finalizer
    ground.turn()
    assert ground.heard == ["token"]


def test_nothing_to_hold_is_held_all_the_same(ground: Ground) -> None:
    torch = pytest.importorskip("torch")
    array = ground.hold("empty", 0)
    tensor = torch.from_numpy(array)
    assert array.shape == (0,)
    assert tensor.shape == (0,)
    del array
    ground.turn()
    assert ground.heard == []
    del tensor
    ground.turn()
    assert ground.heard == ["empty"]


def test_tokens_come_once_and_in_order(ground: Ground) -> None:
    for token in range(2000):
        ground.hold(token)
    assert len(ground.queue) == 2000
    ground.turn()
    assert ground.heard == list(range(2000))


def test_many_tokens_do_not_hold_the_loop_up(ground: Ground) -> None:
    for token in range(3000):
        ground.queue.push(token)
    seen = []

    async def watch() -> None:
        while len(ground.heard) < 3000:
            seen.append(len(ground.heard))
            await asyncio.sleep(0)

    ground.loop.run_until_complete(watch())
    assert len(seen) >= 5
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 512


def test_from_many_threads_and_inside_the_collector(ground: Ground) -> None:
    threads, each = 8, 500
    finished = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        for i in range(each):
            cycle: list[Any] = [ground.hold((number, i))]
            cycle.append(cycle)  # only the collector can free it, in whatever thread it runs
        finished.wait()

    before = gc.get_threshold()
    gc.set_threshold(20, 5, 5)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()

        async def until_finished() -> None:
            await ground.loop.run_in_executor(None, finished.wait)
            await ground.loop.shutdown_default_executor()

        ground.loop.run_until_complete(until_finished())
        for worker in workers:
            worker.join()
    finally:
        gc.set_threshold(*before)
        sys.setswitchinterval(switch)
    gc.collect()
    ground.turn()
    assert Counter(ground.heard) == Counter((n, i) for n in range(threads) for i in range(each))


def test_a_drop_may_make_and_drop_holds(ground: Ground) -> None:
    def hear(token: int) -> None:
        ground.heard.append(token)
        if token < 3000:  # more than one batch
            ground.hold(token + 1000)

    ground.queue.close()
    ground.queue = DropQueue(ground.loop, hear)
    for token in range(1000):
        ground.hold(token)
    ground.turn()
    assert sorted(ground.heard) == list(range(4000))


def test_an_error_of_one_token_loses_no_other(ground: Ground) -> None:
    def hear(token: int) -> None:
        if token == 1:
            raise RuntimeError("this one is bad")
        ground.heard.append(token)

    errors: list[dict[str, Any]] = []
    ground.loop.set_exception_handler(lambda _, context: errors.append(context))
    ground.queue.close()
    ground.queue = DropQueue(ground.loop, hear)
    for token in range(4):
        ground.queue.push(token)
    ground.turn()
    assert ground.heard == [0, 2, 3]
    assert [str(context["exception"]) for context in errors] == ["this one is bad"]


def test_a_token_pushed_while_another_thread_has_just_rung(ground: Ground) -> None:
    ground.queue.push(1)
    ground.queue._drain()  # as if the loop had been there first
    assert ground.heard == [1]
    ground.queue._drain()  # nothing rang
    ground.queue.push(2)
    ground.turn()
    assert ground.heard == [1, 2]


def _alive(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_close_hears_what_has_arrived_and_no_more(ground: Ground) -> None:
    late = ground.hold("late")
    ground.queue.push("early")
    bell = ground.queue._bell
    assert bell is not None
    fd = bell.fd
    ground.queue.close()
    assert ground.heard == ["early"]
    ground.queue.close()
    late[:] = 1
    del late
    ground.queue.push("after")
    assert len(ground.queue) == 0
    ground.queue._drain()
    ground.turn()
    assert ground.heard == ["early"]
    assert _alive(fd)  # as long as a thread may be ringing it
    del bell
    assert not _alive(fd)


def test_close_inside_a_drop(ground: Ground) -> None:
    def hear(token: int) -> None:
        ground.heard.append(token)
        if token == 1:
            ground.queue.close()

    ground.queue.close()
    ground.queue = DropQueue(ground.loop, hear)
    for token in range(4):
        ground.queue.push(token)
    ground.turn()
    assert ground.heard == [0, 1, 2, 3]


def test_closing_after_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    ground = Ground(loop)
    array = ground.hold("token")
    loop.close()
    del array
    ground.queue.close()
    assert ground.heard == ["token"]


def test_the_queue_is_freed_by_closing(loop: asyncio.AbstractEventLoop) -> None:
    class Owner:
        def __init__(self) -> None:
            self.queue = DropQueue(loop, self.hear)  # a circle: owner, queue, bound method

        def hear(self, token: Any) -> None:
            pass

    owner = Owner()
    bell = owner.queue._bell
    assert bell is not None
    fd = bell.fd
    del bell
    gc.disable()
    try:
        owner.queue.close()
        del owner
        assert not _alive(fd)
    finally:
        gc.enable()


def _script(body: str) -> str:
    """Run a program that must exit with 0 and say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + body],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SCRIPT = """
import asyncio, gc, os, sys
import numpy as np
from omni_async.model import Region
from omni_async.pool import DropQueue, Hold, MemfdMemory, Pool

def make():
    loop = asyncio.new_event_loop()
    pool = Pool(
        limit=1 << 20, source=MemfdMemory(),
        register=lambda block: Region(1, block.address, block.nbytes, b"", block.fd),
        unregister=lambda region: None,
    )
    queue = DropQueue(loop, lambda drop: drop())
    def lease(nbytes):
        lease = pool.lease_nowait(nbytes)
        return np.asarray(Hold(lease.address, nbytes, lease.drop, queue, lease.keep))
    return loop, pool, queue, lease

def settle(loop):
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
"""


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_that_drops_everything_changes_nothing(leave: str) -> None:
    _script(
        f"""
loop, pool, queue, lease = make()
arrays = [lease(1000) for _ in range(10)]
dropped = lease(10)
del dropped                       # rung, not heard yet: the child inherits that too
for array in arrays:
    array[:] = 7
pid = os.fork()
if pid == 0:
    assert int(arrays[3].sum()) == 7000
    cycle = [arrays.pop()]
    cycle.append(cycle)
    del cycle, array
    arrays.clear()
    gc.collect()
    assert pool.live == 11
    queue.push(lambda: None)
    assert len(queue) == 1        # what it inherited, and nothing of its own
    queue._drain()
    queue.close()
    assert pool.live == 11
    del queue, pool, lease, loop
    {leave}
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0
settle(loop)
assert pool.live == 10, pool
assert all(int(array.sum()) == 7000 for array in arrays)
del array, arrays
settle(loop)
assert pool.live == 0, pool
queue.close()
assert pool.close() == 0
loop.close()
"""
    )


def test_a_view_that_lives_until_the_interpreter_ends() -> None:
    for ending in ("", "queue.close(); pool.close(); loop.close()", "loop.close()"):
        _script(
            f"""
loop, pool, queue, lease = make()
array = lease(5000)
cycle = [lease(5000)]
cycle.append(cycle)
sys.modules["kept"] = lease(100)  # dies after this module's names
{ending}
"""
        )
