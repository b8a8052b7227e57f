"""Operations that move only while they are asked about: begun, asked and ended in one thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from omni_async._aio import thread_watch
from omni_async._aio.thread_watch import OVERTAKEN, ThreadWatch
from omni_async.errors import ClosedError
from omni_async.testing.leaks import no_leaks


def nothing() -> None: ...


class Told:
    """What its three steps are told to be."""

    def __init__(
        self,
        prepare: Callable[[], object] = nothing,
        start: Callable[[], object] = nothing,
        over: Callable[[], bool] = lambda: True,
        *,
        length: int = 0,
    ) -> None:
        self.length = length
        self.eager = 0.0
        self._prepare = prepare
        self._start = start
        self._over = over

    def prepare(self) -> None:
        self._prepare()

    def start(self) -> None:
        self._start()

    def over(self) -> bool:
        return self._over()


class Counted:
    """Over when it was asked ``times`` times, or when it is let."""

    length = 0

    def __init__(self, times: float = 3, *, eager: float = 0.0) -> None:
        self.times = times
        self.eager = eager
        self.asked = 0
        self.threads: set[str] = set()
        self.steps: list[str] = []

    def prepare(self) -> None:
        self._step("prepare")

    def start(self) -> None:
        self._step("start")

    def over(self) -> bool:
        self._step("over")
        self.asked += 1
        return self.asked >= self.times

    def _step(self, name: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.steps.append(name)


async def test_asked_to_the_end_and_no_further() -> None:
    async with no_leaks():
        watch = ThreadWatch("test")
        one, other = Counted(3), Counted(50, eager=1.0)
        await asyncio.gather(watch.begin(one), watch.begin(other))
        assert one.steps == ["prepare", "start", *["over"] * 3]
        assert other.steps == ["prepare", "start", *["over"] * 50]
        assert one.threads == other.threads == {"test-0"}
        assert len(watch) == 0
        again = Counted(1)
        await watch.begin(again)
        assert again.asked == 1
        watch.close(nothing, nothing)


async def test_what_is_over_at_once_is_told_while_the_next_is_at_work() -> None:
    """Whoever waits for it works while the thread is busy with the next."""
    watch = ThreadWatch("test")
    told = threading.Event()
    both = threading.Event()
    waited: list[bool] = []
    # The second one waits in the queue while the first starts.
    begun = watch.begin(Told(start=lambda: waited.append(both.wait(5))))
    begun.add_done_callback(lambda _: told.set())
    last = watch.begin(Told(start=lambda: waited.append(told.wait(5))))
    both.set()
    await last
    assert waited == [True, True]
    watch.close(nothing, nothing)


async def test_the_next_is_prepared_after_the_start_and_before_the_end_is_told() -> None:
    """The engine does not stand still while the loop hears of an end."""
    watch = ThreadWatch("test")
    words: list[str] = []
    both = threading.Event()
    prepared = threading.Event()

    def prepare() -> None:
        words.append("prepared")
        time.sleep(0.05)  # the loop would hear of an end that was told
        prepared.set()

    def start() -> None:
        assert both.wait(5)
        words.append("started")

    first = watch.begin(Told(start=start))
    first.add_done_callback(lambda _: words.append(f"told {prepared.is_set()}"))
    last = watch.begin(Told(prepare=prepare))
    both.set()
    await last
    assert words == ["started", "prepared", "told True"]
    watch.close(nothing, nothing)


async def test_what_is_short_goes_before_what_is_long() -> None:
    watch = ThreadWatch("test")
    all_there = threading.Event()
    started: list[str] = []
    begun = [watch.begin(Told(start=lambda: all_there.wait(5)))]
    for name in ("long", "longer"):
        begun.append(watch.begin(Told(start=partial(started.append, name), length=800)))
    for name in ("short", "shorter"):
        begun.append(watch.begin(Told(start=partial(started.append, name), length=100)))
    all_there.set()
    await asyncio.gather(*begun)
    assert started == ["short", "shorter", "long", "longer"]
    watch.close(nothing, nothing)


async def test_what_is_long_gets_through_beside_what_is_short() -> None:
    """Endless short ones, one after the other, do not hold it up for ever."""
    watch = ThreadWatch("test")
    begun = 0
    over = asyncio.Event()
    length = 100

    def again(_: object) -> None:
        nonlocal begun
        if not over.is_set():
            begun += 1
            watch.begin(Told(length=1)).add_done_callback(again)

    for _ in range(3):  # so that there is always one that waits
        again(None)
    while begun < 30:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)
    before = begun
    await watch.begin(Told(length=length))
    overtaken = begun - before
    over.set()
    assert overtaken <= OVERTAKEN * length + 10
    while len(watch):  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.001)
    watch.close(nothing, nothing)


async def test_what_cannot_be_prepared_does_not_hold_the_rest_up() -> None:
    watch = ThreadWatch("test")
    both = threading.Event()

    def prepare() -> None:
        raise LookupError("prepared")

    started: list[str] = []
    first = watch.begin(Told(start=lambda: both.wait(5)))
    broken = [watch.begin(Told(prepare, lambda: started.append("broken"))) for _ in range(2)]
    last = watch.begin(Told(start=lambda: started.append("last")))
    both.set()
    ends = await asyncio.gather(first, *broken, last, return_exceptions=True)
    assert [type(one) for one in ends] == [type(None), LookupError, LookupError, type(None)]
    assert started == ["last"]
    assert len(watch) == 0
    watch.close(nothing, nothing)


async def test_what_fails_is_told() -> None:
    watch = ThreadWatch("test")

    def over() -> bool:
        raise ValueError("asked")

    def start() -> None:
        raise KeyError("began")

    long = watch.begin(Counted(200, eager=1.0))
    with pytest.raises(ValueError, match="asked"):
        await watch.begin(Told(over=over))
    with pytest.raises(KeyError, match="began"):
        await watch.begin(Told(start=start))
    await long
    watch.close(nothing, nothing)


async def test_the_end_of_several_is_told_once() -> None:
    """With the first error, and not before the last has ended."""
    watch = ThreadWatch("test")
    ended: list[str] = []

    def over(name: str, error: Exception | None = None) -> bool:
        ended.append(name)
        if error is not None:
            raise error
        return True

    await watch.begin(*(Told(over=partial(over, name)) for name in "abc"))
    assert ended == ["a", "b", "c"]
    ended.clear()
    slow = Counted(50, eager=1.0)
    with pytest.raises(KeyError, match="first"):
        await watch.begin(slow, Told(over=partial(over, "a", KeyError("first"))))
    assert slow.asked == 50
    assert len(watch) == 0
    watch.close(nothing, nothing)


async def test_what_has_not_begun_is_left_out_after_a_failure() -> None:
    watch = ThreadWatch("test")
    started: list[int] = []

    def start(number: int) -> None:
        started.append(number)
        if number == 1:
            raise KeyError(number)

    with pytest.raises(KeyError, match="1"):
        await watch.begin(*(Told(start=partial(start, number)) for number in range(9)))
    assert started == [0, 1]
    await watch.begin(Told(start=partial(start, 9)))
    assert started[-1] == 9
    watch.close(nothing, nothing)


async def test_a_cancelled_wait_ends_nothing() -> None:
    watch = ThreadWatch("test")
    operation = Counted(float("inf"))
    waiting = watch.begin(operation)
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
    waiting = watch.begin(operation)
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
    waiting = watch.begin(old)
    await asyncio.sleep(0.1)
    calls = [watch.run(lambda: threading.current_thread().name) for _ in range(3)]
    await watch.begin(Counted(1))
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

        waiting = watch.begin(Told(over=over))
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
