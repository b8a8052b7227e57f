"""Operations that move only while they are asked about: begun, asked and ended in one thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from omni_async._aio import thread_watch
from omni_async._aio.thread_watch import ThreadWatch
from omni_async.errors import ClosedError
from omni_async.testing.leaks import no_leaks


class Counted:
    """Over when it was asked ``times`` times, or when it is let."""

    def __init__(self, times: float = 3) -> None:
        self.times = times
        self.asked = 0
        self.threads: set[str] = set()

    def begin(self) -> Callable[[], bool]:
        self.threads.add(threading.current_thread().name)
        return self.over

    def over(self) -> bool:
        self.threads.add(threading.current_thread().name)
        self.asked += 1
        return self.asked >= self.times


def nothing() -> None: ...


async def test_asked_to_the_end_and_no_further() -> None:
    async with no_leaks():
        watch = ThreadWatch("test")
        one, other = Counted(3), Counted(50)
        await asyncio.gather(watch.begin(one.begin), watch.begin(other.begin, eager=1.0))
        assert (one.asked, other.asked) == (3, 50)
        assert one.threads == other.threads == {"test-0"}
        assert len(watch) == 0
        again = Counted(1)
        await watch.begin(again.begin)
        assert again.asked == 1
        watch.close(nothing, nothing)


async def test_what_is_over_at_once_is_told_before_the_next_begins() -> None:
    """Whoever waits for it works while the thread is busy with the next."""
    watch = ThreadWatch("test")
    told = threading.Event()
    both = threading.Event()

    def first() -> Callable[[], bool]:
        assert both.wait(5)  # the second one waits in the queue
        return lambda: True

    def second() -> Callable[[], bool]:
        assert told.wait(5)
        return lambda: True

    begun = watch.begin(first)
    begun.add_done_callback(lambda _: told.set())
    last = watch.begin(second)
    both.set()
    await last
    watch.close(nothing, nothing)


async def test_what_fails_is_told() -> None:
    watch = ThreadWatch("test")

    def broken() -> bool:
        raise ValueError("asked")

    def start() -> Callable[[], bool]:
        raise KeyError("began")

    long = watch.begin(Counted(200).begin, eager=1.0)
    with pytest.raises(ValueError, match="asked"):
        await watch.begin(lambda: broken)
    with pytest.raises(KeyError, match="began"):
        await watch.begin(start)
    await long
    watch.close(nothing, nothing)


async def test_a_cancelled_wait_ends_nothing() -> None:
    watch = ThreadWatch("test")
    operation = Counted(float("inf"))
    waiting = watch.begin(operation.begin)
    await asyncio.sleep(0)
    waiting.cancel()
    await watch.run(nothing)
    assert len(watch) == 1
    operation.times = 0
    while len(watch):  # noqa: ASYNC110 - nobody is told of it
        await asyncio.sleep(0.001)
    watch.close(nothing, nothing)


async def test_who_waits_long_is_asked_seldom() -> None:
    watch = ThreadWatch("test")
    operation = Counted(float("inf"))
    waiting = watch.begin(operation.begin)
    await asyncio.sleep(0.3)
    before, cpu, begun = operation.asked, time.thread_time(), time.monotonic()
    await asyncio.sleep(0.2)
    asked, took = operation.asked - before, time.monotonic() - begun
    assert 0 < asked <= took / thread_watch.LONGEST + 2
    assert time.thread_time() - cpu < 0.2
    operation.times = 0
    await waiting
    watch.close(nothing, nothing)


async def test_a_new_one_does_not_wait_for_an_old_ones_turn() -> None:
    watch = ThreadWatch("test")
    old = Counted(float("inf"))
    waiting = watch.begin(old.begin)
    await asyncio.sleep(0.1)
    calls = [watch.run(lambda: threading.current_thread().name) for _ in range(3)]
    await watch.begin(Counted(1).begin)
    assert await asyncio.gather(*calls) == ["test-0"] * 3
    old.times = 0
    await waiting
    watch.close(nothing, nothing)


async def test_closing_ends_what_is_under_way() -> None:
    async with no_leaks():
        watch = ThreadWatch("test")
        words: list[str] = []
        stopped = threading.Event()

        def over() -> bool:
            if stopped.is_set():
                words.append("asked")
                raise ConnectionError("ended")
            return False

        def abort() -> None:
            words.append("abort")
            stopped.set()

        waiting = watch.begin(lambda: over)
        await watch.run(nothing)
        [thread] = [one for one in threading.enumerate() if one.name == "test-0"]
        watch.close(abort, lambda: words.append("end"))
        with pytest.raises(ConnectionError):
            await waiting
        while thread.is_alive():  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.001)
        assert words == ["abort", "asked", "end"]
        with pytest.raises(ClosedError):
            watch.run(nothing)
