"""Processes killed in the middle of traffic, again and again.

In: a seed. Out: no wrong byte, nothing that hangs, nothing left.
Never: kills at a convenient moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
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

STREAMS = 4
POOL = 16 << 20
GRACE = 2.0
"""Seconds in which a claimed operation has to end when its peer is killed."""
TRAFFIC = "omni_async.testing.traffic"

SHORT_AND_LONG = pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, id="short"),
        pytest.param(50, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)


@SHORT_AND_LONG
async def test_senders_are_killed(namespace: str, kills: int) -> None:
    """Claimed gets end in ``PeerLost`` in time, parked ones are answered by the next sender."""
    chance = random.Random(kills)
    numbers = [0] * STREAMS
    losses: list[str] = []
    async with no_leaks(mark=namespace):
        async with _open(namespace, "receiver", "1") as rx:
            killed = [0.0]
            readers = [
                asyncio.create_task(_read(rx, stream, numbers, killed, losses))
                for stream in range(STREAMS)
            ]
            for _ in range(kills + 1):
                async with _peer() as peer:
                    side = await _away(peer, namespace, "sender", "0")
                    producing = asyncio.create_task(
                        _use(peer, side, "produce", starts=list(numbers))
                    )
                    before = sum(numbers)
                    await _until(lambda: sum(numbers) > before + 3, readers)  # noqa: B023
                    await asyncio.sleep(chance.random() * 0.3)
                    killed[0] = time.monotonic()
                    peer.kill()
                    await producing
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
            await quiet(rx)
            assert not losses, losses
            assert rx.health().gets == sum(numbers)


@SHORT_AND_LONG
async def test_receivers_are_killed(namespace: str, kills: int, tmp_path: Path) -> None:
    """What a dead receiver had claimed is on offer again; every payload arrives once, whole."""
    chance = random.Random(kills)
    ledger = Ledger(tmp_path / "ledger", STREAMS)
    async with no_leaks(mark=namespace):
        async with _open(namespace, "sender", "0") as tx:
            producing = asyncio.create_task(produce(LocalSide(tx), [0] * STREAMS))
            for _ in range(kills):
                async with _peer() as peer:
                    side = await _away(peer, namespace, "receiver", "1")
                    consuming = asyncio.create_task(_consume(peer, side, tmp_path))
                    before = _sum(ledger)
                    await _until(lambda: _sum(ledger) > before + 3, [producing])  # noqa: B023
                    await asyncio.sleep(chance.random() * 0.3)
                    peer.kill()
                    await consuming
                began = time.monotonic()
                await quiet(tx, pool_used=None, within=GRACE)
                assert time.monotonic() - began < GRACE
            producing.cancel()
            await asyncio.wait({producing})
            async with _open(namespace, "receiver", "1") as rx:
                await _read_rest(tx, rx, ledger)
                await quiet(tx)
    ledger.close()


async def _read(
    rx: omni_async.Transport,
    stream: int,
    numbers: list[int],
    killed: list[float],
    losses: list[str],
) -> None:
    """Read one stream for ever, through every loss."""
    while True:
        number = numbers[stream]
        try:
            delivery = await rx.get("0", "1", key_of(stream, number), timeout=None)
        except PeerLost:
            late = time.monotonic() - killed[0]
            if late > GRACE:
                losses.append(f"{key_of(stream, number)} ended {late:.1f} s after the kill")
            continue
        fault = difference(delivery.value, payload_of(stream, number).make())
        del delivery  # a cancelled task keeps its frame, and that would keep the memory
        if fault:
            losses.append(f"{key_of(stream, number)}: {fault}")
        numbers[stream] = number + 1


async def _read_rest(tx: omni_async.Transport, rx: omni_async.Transport, ledger: Ledger) -> None:
    """What nobody had fetched when the traffic ended."""
    for stream in range(STREAMS):
        misses = 0
        number = max(0, ledger[stream] - 1)
        while misses < 3:
            try:
                delivery = await rx.get("0", "1", key_of(stream, number), timeout=0)
            except omni_async.KeyNotFound:
                misses += 1
            else:
                assert difference(delivery.value, payload_of(stream, number).make()) is None
                del delivery
            number += 1


async def _until(holds: Any, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for traffic; nobody tells of it."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "traffic stands still"
        for task in tasks:
            assert not task.done(), task
        await asyncio.sleep(0.005)


def _sum(ledger: Ledger) -> int:
    return sum(ledger[stream] for stream in range(STREAMS))


def _open(namespace: str, role: Any, stage: str) -> Any:
    spec = {"name": "shm", "extra": {"memory_pool_size": POOL}}
    return omni_async.open_transport(spec, role=role, stage=stage, namespace=namespace, linger=0.0)


async def _away(peer: PeerProcess, namespace: str, role: str, stage: str) -> RemoteSide:
    return await peer.open(
        role, "shm", extra={"memory_pool_size": POOL}, role=role, stage=stage, namespace=namespace
    )


@contextlib.asynccontextmanager
async def _peer() -> AsyncIterator[PeerProcess]:
    peer = PeerProcess()
    try:
        with peer.attached():
            yield peer
    finally:
        peer.close()


async def _use(peer: PeerProcess, side: RemoteSide, what: str, **arguments: Any) -> Any:
    """Until the process is killed."""
    from omni_async.testing.orders import PeerGone

    with contextlib.suppress(PeerGone):
        return await peer.call("use", target=f"{TRAFFIC}:{what}", side=side.name, **arguments)


async def _consume(peer: PeerProcess, side: RemoteSide, folder: Path) -> None:
    wrong = await _use(peer, side, "consume", path=os.fspath(folder / "ledger"), streams=STREAMS)
    assert not wrong, wrong
