"""The owned executor: lazily started daemon threads, finish before cancel, a close that never hangs."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import get_context

import pytest

from omni_async._aio.executor import OwnedExecutor, default_threads
from omni_async.errors import ClosedError, UsageError


@pytest.fixture
def executor() -> Iterator[OwnedExecutor]:
    owned = OwnedExecutor("test-owned", 2)
    yield owned
    owned.close()


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)


class TestRun:
    async def test_result_and_arguments(self, executor: OwnedExecutor) -> None:
        assert await executor.run(divmod, 7, 3) == (2, 1)
        assert await executor.finish(int, "10", base=2) == 2

    async def test_runs_in_a_named_daemon_thread(self, executor: OwnedExecutor) -> None:
        thread = await executor.run(threading.current_thread)
        assert thread.name == "test-owned-0"
        assert thread.daemon

    @pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), KeyboardInterrupt()])
    async def test_errors_come_through(self, executor: OwnedExecutor, error: BaseException) -> None:
        def fail() -> None:
            raise error

        outcomes = await asyncio.gather(executor.finish(self._caught, fail))
        assert outcomes[0] is error
        if isinstance(error, Exception):
            with pytest.raises(KeyError):
                await executor.run(fail)
        assert await executor.run(int) == 0  # the thread is alive

    @staticmethod
    def _caught(call: object) -> BaseException:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001
            return error
        raise AssertionError

    async def test_stop_iteration(self, executor: OwnedExecutor) -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await executor.run(next, iter(()))

    async def test_threads_start_when_needed(self, executor: OwnedExecutor) -> None:
        assert executor.started == 0
        for _ in range(5):
            await executor.run(int)
            await asyncio.sleep(0.01)
        assert executor.started == 1
        both = threading.Barrier(2)
        await asyncio.gather(executor.run(both.wait), executor.run(both.wait))
        assert executor.started == 2
        await asyncio.gather(*(executor.run(time.sleep, 0.001) for _ in range(10)))
        assert executor.started == 2

    async def test_nothing_is_kept_of_a_call(self, executor: OwnedExecutor) -> None:
        class Big:
            pass

        big = Big()
        gone = weakref.ref(big)
        await executor.run(id, big)
        del big
        await executor.run(int)
        gc.collect()
        assert gone() is None

    def test_sizes(self) -> None:
        assert default_threads() == max(1, len(os.sched_getaffinity(0)) - 1)
        assert OwnedExecutor("x").limit == default_threads()
        with pytest.raises(ValueError, match="at least one thread"):
            OwnedExecutor("x", 0)


class TestCancel:
    async def test_run_abandons_the_call(self, executor: OwnedExecutor) -> None:
        go, over = threading.Event(), threading.Event()

        def call() -> None:
            go.wait(10)
            over.set()

        future = executor.run(call)
        future.cancel()
        go.set()
        await until(over)
        await asyncio.sleep(0.01)

    async def test_finish_waits_for_a_call_that_has_begun(self, executor: OwnedExecutor) -> None:
        began, go = threading.Event(), threading.Event()
        ended: list[int] = []

        def call() -> None:
            began.set()
            go.wait(10)
            ended.append(1)

        task = asyncio.ensure_future(executor.finish(call))
        await until(began)
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
        go.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert ended == [1]

    async def test_finish_withdraws_a_call_that_has_not_begun(
        self, executor: OwnedExecutor
    ) -> None:
        go = threading.Event()
        busy = [executor.run(go.wait, 10) for _ in range(2)]
        called: list[int] = []
        task = asyncio.ensure_future(executor.finish(called.append, 1))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
        go.set()
        await asyncio.gather(*busy)
        await executor.run(int)
        assert called == []


class TestSteps:
    async def test_until_false(self, executor: OwnedExecutor) -> None:
        rest = [3, 2, 1]

        def step() -> bool:
            return bool(rest.pop() and rest)

        await executor.run_steps(step)
        assert rest == []

    async def test_error_in_a_step(self, executor: OwnedExecutor) -> None:
        steps = iter([True, True])
        with pytest.raises(RuntimeError, match="StopIteration"):
            await executor.run_steps(lambda: next(steps))

    async def test_others_get_their_turn(self) -> None:
        executor = OwnedExecutor("fair", 1)
        order: list[str] = []
        begun = threading.Event()
        go = threading.Event()
        left = iter(range(100))

        def step() -> bool:
            begun.set()
            go.wait(10)
            order.append("step")
            return next(left) < 20

        long = executor.run_steps(step)
        await until(begun)
        short = executor.run(order.append, "short")
        go.set()
        await short
        await long
        assert order.index("short") <= 2
        assert order.count("step") == 21
        executor.close()


class TestClose:
    async def test_refuses_and_fails_what_has_not_begun(self) -> None:
        executor = OwnedExecutor("x", 1)
        go, began = threading.Event(), threading.Event()

        def call() -> int:
            began.set()
            go.wait(10)
            return 7

        running = executor.run(call)
        await until(began)
        waiting = asyncio.ensure_future(executor.finish(int))
        await asyncio.sleep(0)
        executor.close()
        executor.close()
        with pytest.raises(ClosedError, match="before the call began"):
            await waiting
        with pytest.raises(ClosedError, match="x is closed"):
            executor.run(int)
        go.set()
        assert await running == 7

    async def test_threads_end(self) -> None:
        executor = OwnedExecutor("ending", 2)
        both = threading.Barrier(2)
        await asyncio.gather(executor.run(both.wait), executor.run(both.wait))
        threads = [t for t in threading.enumerate() if t.name.startswith("ending")]
        assert len(threads) == 2
        executor.close()
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()

    async def test_unused(self) -> None:
        OwnedExecutor("x", 1).close()

    def test_loop_closed_before_the_call_ends(self) -> None:
        executor = OwnedExecutor("x", 1)
        go = threading.Event()

        async def leave() -> None:
            executor.run(go.wait, 10)
            await asyncio.sleep(0.01)

        asyncio.run(leave())
        go.set()
        assert asyncio.run(_use(executor)) == 0  # its thread lives on
        executor.close()

    def test_stuck_call_does_not_hold_up_the_exit(self) -> None:
        script = """
import asyncio, sys, time
from omni_async._aio.executor import OwnedExecutor
async def main():
    executor = OwnedExecutor("stuck", 1)
    executor.run(time.sleep, 600)
    await asyncio.sleep(0.05)
    executor.close()
asyncio.run(main())
"""
        began = time.monotonic()
        path = os.pathsep.join(filter(None, sys.path))
        subprocess.run(
            [sys.executable, "-P", "-c", script]
            if sys.version_info >= (3, 11)
            else [sys.executable, "-c", script],
            check=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert time.monotonic() - began < 20


async def _use(executor: OwnedExecutor) -> int:
    return await executor.run(int)


def _refused(executor: OwnedExecutor) -> None:
    async def use() -> int:
        try:
            await executor.run(int)
        except UsageError as error:
            return 0 if "forked child" in str(error) else 2
        return 1

    os._exit(asyncio.run(use()))


def test_forked_child_is_refused() -> None:
    executor = OwnedExecutor("x", 1)
    asyncio.run(_use(executor))
    child = get_context("fork").Process(target=_refused, args=(executor,))
    child.start()
    child.join()
    assert child.exitcode == 0
    executor.close()
