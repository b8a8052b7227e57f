"""Deadlines and waiting under them."""

from __future__ import annotations

import asyncio
import gc
import math
import time
import tracemalloc

import pytest

from omni_async._aio.deadline import Deadline, seconds, wait_until
from omni_async.errors import UsageError


class Late(Exception):
    pass


class TestSeconds:
    def test_what_is_a_limit(self) -> None:
        assert seconds(None) is None
        assert seconds(0) == 0.0
        assert seconds(1.5) == 1.5
        assert seconds(math.inf) is None
        assert seconds(10**400) is None

    @pytest.mark.parametrize("value", [-1, -0.001, -math.inf, math.nan, True, False, "5", b"5", []])
    def test_what_is_none(self, value: object) -> None:
        with pytest.raises(UsageError) as caught:
            seconds(value, "linger")
        assert repr(value) in str(caught.value)
        assert "linger" in str(caught.value)


class TestDeadline:
    def test_after(self) -> None:
        deadline = Deadline.after(10)
        assert deadline.remaining is not None
        assert 9.9 < deadline.remaining <= 10
        assert not deadline.over
        assert "in 9.9" in repr(deadline) or "in 10.0" in repr(deadline)

    def test_zero_is_over(self) -> None:
        deadline = Deadline.after(0)
        assert deadline.over
        assert deadline.remaining == 0

    def test_never(self) -> None:
        assert Deadline.after(None) is Deadline.NEVER
        assert Deadline.NEVER.remaining is None
        assert not Deadline.NEVER.over
        assert repr(Deadline.NEVER) == "Deadline(never)"

    def test_the_earlier_one(self) -> None:
        soon, later = Deadline.after(1), Deadline.after(2)
        assert soon.earlier(later) is later.earlier(soon) is soon
        assert Deadline.NEVER.earlier(soon) is soon.earlier(Deadline.NEVER) is soon
        assert soon.earlier(soon) is soon

    def test_wrong_argument(self) -> None:
        with pytest.raises(UsageError, match="linger"):
            Deadline.after("1", "linger")


class TestWaitUntil:
    async def test_result_in_time(self) -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, future.set_result, 7)
        assert await wait_until(future, Deadline.after(5), Late) == 7

    async def test_no_limit(self) -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, future.set_result, 7)
        assert await wait_until(future, Deadline.NEVER, Late) == 7

    async def test_error_in_time(self) -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, KeyError("x"))
        with pytest.raises(KeyError):
            await wait_until(future, Deadline.after(5), Late)

    @pytest.mark.parametrize("limit", [0, 0.02])
    async def test_expiry(self, limit: float) -> None:
        future = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        with pytest.raises(Late):
            await wait_until(future, Deadline.after(limit), Late)
        assert limit * 0.9 <= time.monotonic() - began < limit + 0.5
        assert future.done()  # whoever completes it later sees that

    @pytest.mark.parametrize("limit", [0, 5])
    async def test_what_is_there_already_is_returned(self, limit: float) -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_result(7)
        assert await wait_until(future, Deadline.after(limit), Late) == 7

    async def test_result_just_before_the_expiry_runs(self) -> None:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(wait_until(future, Deadline.after(0.01), Late))
        await asyncio.sleep(0)
        future.set_result(7)
        time.sleep(0.03)  # noqa: ASYNC251 - now the timer is due as well
        assert await task == 7

    async def test_cancellation_passes_untouched(self) -> None:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(wait_until(future, Deadline.after(5), Late))
        await asyncio.sleep(0)
        task.cancel("why")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()

    async def test_no_timer_is_left(self) -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(300)]
        tasks = [asyncio.ensure_future(wait_until(f, Deadline.after(3600), Late)) for f in futures]
        await asyncio.sleep(0)
        for future in futures:
            future.set_result(None)
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.01)
        live = [handle for handle in getattr(loop, "_scheduled") if not handle.cancelled()]  # noqa: B009
        assert live == []

    async def test_ten_thousand_waiters_are_small(self) -> None:
        loop = asyncio.get_running_loop()
        count = 10_000
        gc.collect()
        tracemalloc.start()
        futures = [loop.create_future() for _ in range(count)]
        waits = [wait_until(future, Deadline.after(3600), Late) for future in futures]
        for wait in waits:
            wait.send(None)  # up to its await, without a task
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used / count < 1200  # 810 bytes; what traces the tests is counted too
        for wait in waits:
            wait.close()
