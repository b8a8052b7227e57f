"""Processes killed in the middle of traffic and started anew, again and again.

In: a seed. Out: no wrong byte, nothing that hangs, soon at work again, nothing left.
Never: kills at a convenient moment.

Where receivers are told ports, every second sender comes back at another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import omni_async
from omni_async.errors import PeerLost
from omni_async.testing.compare import difference
from omni_async.testing.leaks import no_leaks, quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.sides import LocalSide, RemoteSide
from omni_async.testing.traffic import Ledger, key_of, payload_of, produce
from tests.ends import HOST, Ends, ends, led

STREAMS = 4
POOL = 16 << 20
GRACE = 2.0
"""Seconds in which a claimed operation has to end when its peer is killed."""
RECOVERY = 3.0
"""Seconds from the start of a successor until all streams go on."""
GROWTH = 24 << 20
"""Private bytes that the survivor may grow from a quarter of the kills to their end."""
DESCRIPTORS = 12
"""Likewise: connections on their way in and out."""
PAGE = os.sysconf("SC_PAGE_SIZE")
TRAFFIC = "omni_async.testing.traffic"

SHORT_AND_LONG = pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, id="short"),
        pytest.param(50, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
CONNECTORS = pytest.mark.parametrize(
    "connector", ["shm", "mooncake", pytest.param("nixl", marks=pytest.mark.soak)]
)


@CONNECTORS
@SHORT_AND_LONG
async def test_senders_are_killed(namespace: str, connector: str, kills: int) -> None:
    """Claimed gets end in ``PeerLost`` in time, parked ones are answered by the next sender."""
    chance = random.Random(kills)
    with ends(connector, namespace, memory_pool_size=POOL) as here:
        async with _watched(here), here.open("receiver", "1") as rx:
            reading, survivor = Reading(rx), Survivor(here, kills)
            for turn in range(kills + 1):
                async with led() as peer:
                    moves = here.addressed and turn % 2 == 1
                    if moves:
                        here.move()
                        reading.moved(here)
                    side = await here.away(peer, "sender", "0")
                    producing = asyncio.create_task(
                        _use(peer, side, "produce", starts=list(reading.numbers))
                    )
                    await survivor.until(reading.all_go_on(), reading.tasks)
                    await asyncio.sleep(chance.random() * 0.3)
                    reading.killed = time.monotonic()
                    peer.kill()
                    await producing
                survivor.look()
            await reading.end()
            await quiet(rx)
            assert not reading.losses, reading.losses
            assert rx.health().gets == sum(reading.numbers)
            survivor.tell()


@CONNECTORS
@SHORT_AND_LONG
async def test_receivers_are_killed(
    namespace: str, connector: str, kills: int, tmp_path: Path
) -> None:
    """What a dead receiver had claimed is on offer again; every payload arrives, whole."""
    chance = random.Random(kills)
    ledger = Ledger(tmp_path / "ledger", STREAMS)
    with ends(connector, namespace, memory_pool_size=POOL) as here:
        async with _watched(here), here.open("sender", "0") as tx:
            survivor = Survivor(here, kills)
            producing = asyncio.create_task(produce(LocalSide(tx), [0] * STREAMS))
            for _ in range(kills):
                async with led() as peer:
                    side = await here.away(peer, "receiver", "1")
                    consuming = asyncio.create_task(_consume(peer, side, tmp_path))
                    before = [ledger[stream] for stream in range(STREAMS)]
                    await survivor.until(
                        lambda: all(ledger[n] > before[n] for n in range(STREAMS)),  # noqa: B023
                        [producing],
                    )
                    await asyncio.sleep(chance.random() * 0.3)
                    peer.kill()
                    await consuming
                began = time.monotonic()
                await quiet(tx, pool_used=None, within=GRACE)
                assert time.monotonic() - began < GRACE
                survivor.look()
            producing.cancel()
            await asyncio.wait({producing})
            async with here.open("receiver", "1") as rx:
                await _read_rest(rx, ledger)
                await quiet(tx)
            survivor.tell()
    ledger.close()


@contextlib.asynccontextmanager
async def _watched(here: Ends) -> AsyncIterator[None]:
    """Nothing is left, but for what an engine keeps for the life of its process."""
    if here.addressed:
        yield
    else:
        async with no_leaks(mark=here.namespace):
            yield


class Survivor:
    """How the process that is not killed fares: how soon all goes on, and what it grows by."""

    def __init__(self, here: Ends, kills: int) -> None:
        self._here = here
        self._kills = kills
        self._seen: list[tuple[int, int]] = []
        self._waits: list[float] = []

    async def until(self, holds: Callable[[], bool], tasks: list[asyncio.Task[None]]) -> None:
        """Wait for traffic; nobody tells of it."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() < began + 30, "traffic stands still"
            for task in tasks:
                assert not task.done(), task
            await asyncio.sleep(0.002)
        self._waits.append(time.monotonic() - began)

    def look(self) -> None:
        gc.collect()
        fields = Path("/proc/self/statm").read_text().split()
        resident = (int(fields[1]) - int(fields[2])) * PAGE
        descriptors = len(os.listdir("/proc/self/fd")) - len(self._here.ports)
        self._seen.append((resident, descriptors))

    def tell(self) -> None:
        early, late = self._seen[self._kills // 4], self._seen[-1]
        grown, descriptors = late[0] - early[0], late[1] - early[1]
        print(  # noqa: T201
            f"{self._here.connector}, {self._kills} kills: on again after {max(self._waits):.2f} s at most; "
            f"grown {grown:,} bytes, {descriptors} descriptors"
        )
        assert max(self._waits) < RECOVERY
        assert grown < GROWTH
        assert descriptors <= DESCRIPTORS


class Reading:
    """Reads all streams for ever, through every loss."""

    def __init__(self, rx: omni_async.Transport) -> None:
        self._rx = rx
        self.numbers = [0] * STREAMS
        self.losses: list[str] = []
        self.killed = 0.0
        self._gets: dict[int, asyncio.Future[Any]] = {}
        self.tasks = [asyncio.create_task(self._read(stream)) for stream in range(STREAMS)]

    def all_go_on(self) -> Callable[[], bool]:
        before = list(self.numbers)
        return lambda: all(now > then for now, then in zip(self.numbers, before, strict=True))

    def moved(self, here: Ends) -> None:
        """The sender will be elsewhere: what waits for the one before is asked anew."""
        self._rx.update_sender_info(HOST, here.port())
        for get in self._gets.values():
            get.cancel()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def _read(self, stream: int) -> None:
        while True:
            number = self.numbers[stream]
            key = key_of(stream, number)
            self._gets[stream] = get = asyncio.ensure_future(
                self._rx.get("0", "1", key, timeout=None)
            )
            try:
                await asyncio.wait({get})
            except asyncio.CancelledError:
                get.cancel()
                await asyncio.wait({get})
                if not get.cancelled():  # it had come
                    self._take(stream, key, get)
                raise
            if not get.cancelled():
                self._take(stream, key, get)
            del get  # a finished task keeps its delivery

    def _take(self, stream: int, key: str, get: asyncio.Future[Any]) -> None:
        try:
            delivery = get.result()
        except PeerLost:
            late = time.monotonic() - self.killed
            if late > GRACE:
                self.losses.append(f"{key} ended {late:.1f} s after the kill")
            return
        fault = difference(delivery.value, payload_of(stream, self.numbers[stream]).make())
        if fault:
            self.losses.append(f"{key}: {fault}")
        del self._gets[stream]
        self.numbers[stream] += 1


async def _read_rest(rx: omni_async.Transport, ledger: Ledger) -> None:
    """What nobody had fetched when the traffic ended, and what was put back on offer on the way.

    A receiver that is killed takes along the word of its last deliveries; where no mark in shared memory
    tells of them either, they are on offer once more.
    """
    for stream in range(STREAMS):
        misses = number = 0
        while misses < 3 or number < ledger[stream] + 3:
            try:
                delivery = await rx.get("0", "1", key_of(stream, number), timeout=0)
            except omni_async.KeyNotFound:
                misses += 1
            else:
                misses = 0
                assert difference(delivery.value, payload_of(stream, number).make()) is None
                del delivery
            number += 1


async def _use(peer: PeerProcess, side: RemoteSide, what: str, **arguments: Any) -> Any:
    """Until the process is killed."""
    from omni_async.testing.orders import PeerGone

    with contextlib.suppress(PeerGone):
        return await peer.call("use", target=f"{TRAFFIC}:{what}", side=side.name, **arguments)


async def _consume(peer: PeerProcess, side: RemoteSide, folder: Path) -> None:
    wrong = await _use(peer, side, "consume", path=os.fspath(folder / "ledger"), streams=STREAMS)
    assert not wrong, wrong
