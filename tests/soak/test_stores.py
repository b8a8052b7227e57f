"""Two processes over a real store, for long: memory stays what it was, and killed servers are lived through.

In: which store, how many rounds or kills. Out: no wrong byte, nothing left, nothing late; figures on stdout.
Never: takes a warm-up for growth; kills at a convenient moment.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import omni_async
from omni_async.testing.compare import difference
from omni_async.testing.leaks import quiet
from omni_async.testing.sides import EDGE
from omni_async.testing.traffic import Ledger
from tests.ends import led

from . import store_traffic
from .store_ends import STORES, StoreEnds, resident, store_ends
from .store_traffic import AHEAD, LIMIT, Report, is_cleaned, key_of, value_of

TRAFFIC = "tests.soak.store_traffic"
STEP = 50
"""Payloads that are put and fetched side by side."""
GROWTH = 24 << 20
"""Bytes that a process may grow after the warm-up: what allocators keep for themselves."""
EIGHTHS = 8
STREAMS = 4
RECOVERY = 8.0
"""Seconds from the moment a server answers again until all streams go on."""

BOTH = pytest.mark.parametrize("connector", STORES)


@BOTH
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(500, id="short"),
        pytest.param(10_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
async def test_rounds_leave_nothing(namespace: str, connector: str, rounds: int) -> None:
    with store_ends(connector, namespace) as here:
        async with led() as peer:
            side = await here.away(peer, "sender")
            async with here.open("receiver") as rx:
                pids = {"server": here.server.pid, "receiver": os.getpid(), "sender": peer.pid}
                sizes = []
                for start in range(0, rounds, STEP):
                    if start % (rounds // EIGHTHS // STEP * STEP or STEP) == 0:
                        assert await side.drain(5) == 0
                        gc.collect()
                        sizes.append({name: resident(pid) for name, pid in pids.items()})
                    putting = asyncio.create_task(
                        side.use(f"{TRAFFIC}:put_range", start=start, end=start + STEP)
                    )
                    await _take(rx, range(start, start + STEP))
                    await putting
                await quiet(rx)
                await _empty(here)
                assert await side.drain(5) == 0
                health = await side.health()
                assert (health.pool_used, health.in_flight) == (0, 0)
                gc.collect()
                sizes.append({name: resident(pid) for name, pid in pids.items()})
            await side.close()
    course = {name: [size[name] >> 10 for size in sizes] for name in pids}
    print(f"{connector}: {rounds} rounds, KB in memory meanwhile {course}")  # noqa: T201
    grown = {name: sizes[-1][name] - sizes[len(sizes) // 4][name] for name in pids}
    assert max(grown.values()) < GROWTH, grown


async def _take(rx: omni_async.Transport, numbers: range) -> None:
    for number in numbers:
        if not is_cleaned(number):
            delivery = await rx.get(*EDGE, f"k{number}", timeout=60)
            assert difference(delivery.value, value_of(number)) is None
            delivery.release()


async def _empty(here: StoreEnds) -> None:
    """What was delivered is deleted a moment later, and nobody is told."""
    began = time.monotonic()
    while here.kept() > 0:
        assert time.monotonic() < began + 5, here.kept()
        await asyncio.sleep(0.05)


@BOTH
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, id="short", marks=pytest.mark.timeout(120)),
        pytest.param(20, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
async def test_servers_are_killed(
    namespace: str, connector: str, kills: int, tmp_path: Path
) -> None:
    """Every operation ends in a value or in one of our errors, in time; then traffic flows on."""
    chance = random.Random(kills)
    ledger = Ledger(tmp_path / "ledger", STREAMS + 1)
    with store_ends(connector, namespace) as here:
        async with led() as peer:
            side = await here.away(peer, "sender")
            async with here.open("receiver") as rx:
                taking = Taking(rx, ledger)
                putting = asyncio.create_task(
                    side.use(f"{TRAFFIC}:put_on", path=str(tmp_path / "ledger"), streams=STREAMS)
                )
                waits = [await taking.flows(30)]
                for _ in range(kills):
                    await asyncio.sleep(chance.random() * 0.5)
                    here.server.kill()
                    await asyncio.sleep(chance.random() * 1.5)
                    here.server.begin()
                    await asyncio.to_thread(here.server.wait)
                    waits.append(await taking.flows(60))
                ledger[STREAMS] = 1
                await taking.end()
                report = await asyncio.wait_for(putting, LIMIT + 10)
                await quiet(rx)
            await side.close()
    print(  # noqa: T201
        f"{connector}, {kills} kills: flows again after {max(waits[1:]):.1f} s at most; gets ended "
        f"{dict(taking.report.ended)}, puts {report['ended']}"
    )
    ledger.close()
    assert not taking.wrong
    assert not taking.report.late
    assert not report["late"]
    assert max(waits[1:]) < RECOVERY


class Taking:
    """Gets all streams, a few payloads of each at once, whatever happens."""

    def __init__(self, rx: omni_async.Transport, ledger: Ledger) -> None:
        self._rx = rx
        self._ledger = ledger
        self._over = False
        self.wrong: list[str] = []
        self.report = Report()
        self.taken = [0] * STREAMS
        self._tasks = [asyncio.create_task(self._stream(stream)) for stream in range(STREAMS)]

    async def flows(self, patience: float) -> float:
        """Seconds until something more of each stream has come."""
        began, before = time.monotonic(), list(self.taken)
        while not all(now > then for now, then in zip(self.taken, before, strict=True)):
            assert time.monotonic() < began + patience, "traffic stands still"
            for task in self._tasks:
                assert not task.done(), task
            await asyncio.sleep(0.005)
        return time.monotonic() - began

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _stream(self, stream: int) -> None:
        number, gets = 0, dict[int, asyncio.Task[None]]()
        while not self._over:
            for ahead in range(number, number + AHEAD):
                if ahead not in gets:
                    gets[ahead] = asyncio.create_task(self._get(stream, ahead))
            await gets.pop(number)
            number += 1
            self._ledger[stream] = number
        for get in gets.values():
            get.cancel()
        await asyncio.gather(*gets.values(), return_exceptions=True)

    async def _get(self, stream: int, number: int) -> None:
        key = key_of(stream, number)
        began = time.monotonic()
        try:
            delivery: Any = await self._rx.get(*EDGE, key, timeout=LIMIT)
        except omni_async.OmniAsyncError as error:
            self.report.add(f"get {key}", began, error)
            return
        self.report.add(f"get {key}", began, None)
        fault = difference(delivery.value, store_traffic.value_of(number))
        if fault:
            self.wrong.append(f"{key}: {fault}")
        self.taken[stream] += 1
