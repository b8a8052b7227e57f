"""LoopBound, and the lag monitor."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
import timeit
import warnings

import pytest

from omni_async._aio import fork
from omni_async._aio.lag import Lag, LagMonitor
from omni_async._aio.loop import LoopBound
from omni_async.errors import UsageError


class TestLoopBound:
    async def test_its_own_loop(self) -> None:
        bound = LoopBound("transport x")
        bound.check()
        assert bound.loop is asyncio.get_running_loop()

    def test_made_without_a_loop(self) -> None:
        with pytest.raises(
            UsageError, match="transport x must be made inside a running event loop"
        ):
            LoopBound("transport x")

    def test_another_loop(self) -> None:
        async def make() -> LoopBound:
            return LoopBound("transport x")

        async def use(bound: LoopBound) -> None:
            bound.check()

        bound = asyncio.run(make())
        with pytest.raises(UsageError, match=r"transport x .* used while that loop does not run"):
            asyncio.run(use(bound))
        with pytest.raises(UsageError, match="while that loop does not run"):
            bound.check()

    async def test_another_thread(self) -> None:
        bound = LoopBound("transport x")
        with pytest.raises(UsageError, match="from another thread"):
            await asyncio.to_thread(bound.check)

    @pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer costs more than the check")
    async def test_cheap(self) -> None:
        bound = LoopBound("transport x")
        number = 20_000
        best = min(timeit.repeat(bound.check, number=number, repeat=7)) / number
        assert best < 1e-6  # 0.1 us here; the bound leaves room for a busy machine

    async def test_forked_child(self) -> None:
        """A child that goes on in its parent's coroutine."""
        bound = LoopBound("transport x")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            status = 1
            try:
                bound.check()
            except UsageError as error:
                status = 0 if "forked child" in str(error) else 2
            finally:
                os._exit(status)
        assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
        bound.check()

    async def test_running_loop_of_a_forked_child(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bound = LoopBound("transport x")
        monkeypatch.setattr(fork, "_generation", fork.generation() + 1)
        with pytest.raises(UsageError, match="forked child"):
            bound.check()


def test_sockets_are_closed_in_a_forked_child() -> None:
    mine, other = socket.socketpair()
    fork.close_in_child(mine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os._exit(0 if mine.fileno() < 0 <= other.fileno() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert mine.fileno() >= 0
    mine.close()
    other.close()


class TestLag:
    async def test_quiet_loop(self) -> None:
        monitor = LagMonitor()
        assert monitor.lag() == Lag(0, 0.0, 0.0, 0.0, 0.0)
        with monitor:
            await asyncio.sleep(0.1)
        lag = monitor.lag()
        assert lag.ticks > 5
        assert 0 <= lag.p50 <= lag.p99 <= lag.p999 <= lag.max

    async def test_blocked_loop(self) -> None:
        with LagMonitor() as monitor:
            await asyncio.sleep(0.02)
            time.sleep(0.2)  # noqa: ASYNC251 - what is measured
            await asyncio.sleep(0.01)
        assert 0.18 < monitor.lag().max < 2

    async def test_blocked_up_to_the_end(self) -> None:
        with LagMonitor() as monitor:
            time.sleep(0.1)  # noqa: ASYNC251 - what is measured
        assert monitor.lag().ticks == 1
        assert monitor.lag().max >= 0.09

    async def test_start_twice_stop_twice_reset(self) -> None:
        monitor = LagMonitor(0.002)
        monitor.start()
        monitor.start()
        await asyncio.sleep(0.03)
        monitor.stop()
        ticks = monitor.lag().ticks
        monitor.stop()
        await asyncio.sleep(0.01)
        assert monitor.lag().ticks == ticks
        monitor.reset()
        assert monitor.lag().ticks == 0

    def test_quantiles_are_within_five_percent(self) -> None:
        monitor = LagMonitor()
        for n in range(1, 10_001):
            monitor._count(n * 1e-5)
        lag = monitor.lag()
        assert lag.p50 == pytest.approx(0.05, rel=0.05)
        assert lag.p99 == pytest.approx(0.099, rel=0.05)
        assert lag.p999 == pytest.approx(0.0999, rel=0.05)
        assert lag.max == pytest.approx(0.1)

    def test_extremes(self) -> None:
        monitor = LagMonitor()
        monitor._count(0.0)
        monitor._count(1e9)
        assert monitor.lag().max == 1e9
        assert monitor.lag().p50 <= 1e-6
