"""Operations that can only be asked about: when they are, how often, and that nothing else runs."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from omni_async._aio.completion_watch import LONGEST, CompletionWatch
from omni_async._aio.kernel_timer import KernelTimer
from tests.descriptors import open_descriptors

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Operation:
    """Ends after a while, and does not forgive being asked after that."""

    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        self.end = time.monotonic() + seconds
        self.error = error
        self.asked = 0
        self.over = False

    def __call__(self) -> bool:
        assert not self.over, "asked after its end"
        self.asked += 1
        self.over = time.monotonic() >= self.end
        if self.over and self.error is not None:
            raise self.error
        return self.over


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "uvloop":
        return pytest.importorskip("uvloop").run  # type: ignore[no-any-return]
    return asyncio.run


def descriptors() -> int:
    return len(open_descriptors())


def test_each_is_told_at_its_own_end(run: Run) -> None:
    async def main() -> None:
        watch = CompletionWatch(asyncio.get_running_loop())
        took: list[float] = []
        begun = time.monotonic()

        async def one(seconds: float) -> None:
            await watch.until(Operation(seconds))
            took.append(time.monotonic() - begun - seconds)

        await asyncio.gather(*(one(n / 1000) for n in (30, 0, 5, 1, 30)))
        assert len(watch) == 0
        # Late by an eighth of its age and half a millisecond at most, were the machine idle.
        assert len(took) == 5
        assert min(took) >= 0
        assert sorted(took)[0] < 0.005
        watch.close()

    run(main())


def test_a_short_one_is_known_in_less_than_a_millisecond(run: Run) -> None:
    async def main() -> float:
        watch = CompletionWatch(asyncio.get_running_loop())
        times = []
        for _ in range(50):
            begun = time.monotonic()
            await watch.until(Operation(100e-6))
            times.append(time.monotonic() - begun)
        watch.close()
        return sorted(times)[5]  # others share this machine

    assert run(main()) < 0.5e-3


def test_a_long_one_is_asked_about_seldom(run: Run) -> None:
    async def main() -> int:
        watch = CompletionWatch(asyncio.get_running_loop())
        operation = Operation(0.2)
        await watch.until(operation)
        watch.close()
        assert watch.asked == operation.asked
        return operation.asked

    assert run(main()) < 0.2 / LONGEST + 60


def test_a_failure_is_told_and_the_others_go_on() -> None:
    async def main() -> None:
        watch = CompletionWatch(asyncio.get_running_loop())
        good = watch.until(Operation(0.01))
        with pytest.raises(ZeroDivisionError):
            await watch.until(Operation(0.001, ZeroDivisionError()))
        await good
        watch.close()

    asyncio.run(main())


def test_who_does_not_wait_any_more_is_not_told() -> None:
    """The operation is asked about to its end all the same: it may hold what its owner needs."""

    async def main() -> None:
        watch = CompletionWatch(asyncio.get_running_loop())
        for error in (None, ZeroDivisionError()):
            operation = Operation(0.01, error)
            future = watch.until(operation)
            future.cancel()
            await watch.until(Operation(0.02))
            assert operation.over
        watch.close()

    asyncio.run(main())


def test_nothing_runs_while_nothing_is_under_way(run: Run) -> None:
    async def main() -> None:
        watch = CompletionWatch(asyncio.get_running_loop())
        await watch.until(Operation(0.001))
        asked, begun = watch.asked, time.process_time()
        await asyncio.sleep(0.2)
        assert watch.asked == asked
        assert time.process_time() - begun < 0.05
        watch.close()

    run(main())


def test_the_timer_is_given_back(run: Run) -> None:
    async def main() -> None:
        before = descriptors()
        watch = CompletionWatch(asyncio.get_running_loop())
        assert descriptors() == before  # it takes none before it is needed
        slow = watch.until(Operation(0.02))
        watch.close()
        await slow
        assert descriptors() == before
        watch.close()

    run(main())


def test_a_loop_that_ends_first() -> None:
    before = descriptors()

    async def main() -> None:
        CompletionWatch(asyncio.get_running_loop()).until(Operation(9))

    asyncio.run(main())
    gc.collect()
    assert descriptors() == before


def test_a_timer_goes_off_once_for_the_last_setting(run: Run) -> None:
    async def main() -> None:
        rang = 0

        def ring() -> None:
            nonlocal rang
            rang += 1

        timer = KernelTimer(asyncio.get_running_loop(), ring)
        timer.set(0.001)
        timer.set(0.03)
        await asyncio.sleep(0.01)
        assert rang == 0
        await asyncio.sleep(0.05)
        assert rang == 1
        timer.set(-1)
        await asyncio.sleep(0.01)
        assert rang == 2
        timer.set(5)
        timer.close()
        timer.close()

    run(main())


def test_a_timer_that_was_set_again_after_it_had_gone_off() -> None:
    """The loop is told of the first time, and finds nothing."""

    async def main() -> None:
        rang: list[float] = []
        timer = KernelTimer(asyncio.get_running_loop(), lambda: rang.append(time.monotonic()))
        timer.set(0.001)
        time.sleep(0.01)  # noqa: ASYNC251 - it goes off behind the loop's back
        timer.set(0.02)
        begun = time.monotonic()
        await asyncio.sleep(0.05)
        assert len(rang) == 1
        assert rang[0] - begun > 0.01
        timer.close()

    asyncio.run(main())
