"""Time limits, and one timer for many of them."""

from __future__ import annotations

import asyncio
import functools
import math
import time

import pytest

from omni_async._aio.deadline import Deadlines, seconds
from omni_async.errors import UsageError


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


class TestDeadlines:
    async def test_in_order_of_time(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines, seen = Deadlines(loop), list[int]()
        done = asyncio.Event()
        now = loop.time()
        deadlines.add(now + 0.03, done.set)
        for number in (2, 0, 1):
            deadlines.add(now + number * 0.01, functools.partial(seen.append, number))
        await asyncio.wait_for(done.wait(), 5)
        assert seen == [0, 1, 2]
        assert len(deadlines) == 0

    async def test_not_before_its_time(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines, done = Deadlines(loop), asyncio.Event()
        began = time.monotonic()
        deadlines.add(loop.time() + 0.05, done.set)
        await asyncio.wait_for(done.wait(), 5)
        assert time.monotonic() - began > 0.04

    async def test_called_off(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines, done = Deadlines(loop), asyncio.Event()
        token = deadlines.add(loop.time(), lambda: pytest.fail("it was called off"))
        deadlines.add(loop.time() + 0.01, done.set)
        deadlines.discard(token)
        deadlines.discard(token)
        await asyncio.wait_for(done.wait(), 5)

    async def test_an_earlier_one_comes_later(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines, done = Deadlines(loop), asyncio.Event()
        deadlines.add(loop.time() + 3600, lambda: pytest.fail("an hour has not passed"))
        deadlines.add(loop.time() + 0.01, done.set)
        await asyncio.wait_for(done.wait(), 5)
        assert len(deadlines) == 1
        deadlines.close()

    async def test_closing_calls_off_all(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        deadlines.add(loop.time(), lambda: pytest.fail("it was closed"))
        deadlines.close()
        deadlines.close()
        await asyncio.sleep(0.02)

    async def test_calls_may_add_and_discard(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines, done = Deadlines(loop), asyncio.Event()
        victim = deadlines.add(loop.time() + 0.02, lambda: pytest.fail("it was called off"))

        def first() -> None:
            deadlines.discard(victim)
            deadlines.add(loop.time() + 0.04, done.set)

        deadlines.add(loop.time() + 0.01, first)
        await asyncio.wait_for(done.wait(), 5)

    async def test_what_is_called_off_is_not_kept(self) -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        deadlines.add(loop.time() + 3600, lambda: None)
        for _ in range(10_000):
            deadlines.discard(deadlines.add(loop.time() + 3600, lambda: None))
        assert len(deadlines) == 1
        assert len(deadlines._heap) < 1000
        deadlines.close()
