"""Streams in great numbers, of great length, and with a reader that is far behind.

In: counts. Out: every chunk once and in order, memory and latency within bounds; figures on stdout.
Never: compares with another machine; the bounds of the short forms are loose, for others run too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import omni_async
from omni_async.testing.chunks import still
from omni_async.testing.leaks import no_leaks, quiet
from omni_async.testing.orders import PeerGone
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern_array
from omni_async.testing.sides import LocalSide, RemoteSide
from omni_async.testing.stream_traffic import Tally, read_streams

PAGE = os.sysconf("SC_PAGE_SIZE")
TRAFFIC = "omni_async.testing.stream_traffic"
ROUNDS = 10
PROMPT = 2.0
"""Seconds within which a stream whose sender was killed has failed."""


@pytest.mark.parametrize(
    ("streams", "chunks", "pause"),
    [
        pytest.param(64, 20, 0.01, id="short"),
        pytest.param(1024, 50, 0.05, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
async def test_one_of_two_senders_is_killed(
    namespace: str, streams: int, chunks: int, pause: float
) -> None:
    """The other's streams do not notice; the broken ones fail in time, and can be begun anew."""
    tallies = {"0": Tally(wrong=[], broken=[]), "2": Tally(wrong=[], broken=[])}
    async with no_leaks(mark=namespace), _open("receiver", "1", namespace) as rx, _peer() as good:
        reading = [
            asyncio.create_task(read_streams(rx, stage, streams, chunks, tally))
            for stage, tally in tallies.items()
        ]
        arguments = {"to_stage": "1", "streams": streams, "chunks": chunks, "pause": pause}
        steady = await _away(good, "sender", "0", namespace)
        writing = asyncio.create_task(
            steady.use(f"{TRAFFIC}:write_streams", generation=0, **arguments)
        )
        async with _peer() as bad:
            victim = await _away(bad, "sender", "2", namespace)
            lost = asyncio.create_task(
                _lost(victim.use(f"{TRAFFIC}:write_streams", generation=1, **arguments))
            )
            await asyncio.sleep(pause * chunks / 2)
            while not _arrived(rx, "2->1"):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
            killed = asyncio.get_running_loop().time()
            bad.kill()
            await lost
        async with _peer() as successor:
            side = await _away(successor, "sender", "2", namespace)
            await side.use(f"{TRAFFIC}:write_streams", generation=2, **arguments)
            await writing
            await asyncio.gather(*reading)
            await still(LocalSide(rx), steady, side)
            await quiet(rx)
            for sender in (side, steady):
                await sender.close()
    broken = tallies["2"].broken
    late = max((when - killed for when, _ in broken), default=0.0)
    print(f"{len(broken)} of {streams} streams broke, the last after {late:.3f} s")  # noqa: T201
    for tally in tallies.values():
        assert not tally.wrong, tally.wrong[:5]
        assert tally.whole == streams
    assert not tallies["0"].broken
    assert broken, "the sender was killed too early or too late"
    assert late < PROMPT
    assert all(reason.startswith("PeerLost") for _, reason in broken), broken[:3]


@pytest.mark.parametrize(
    ("count", "gap"),
    [
        pytest.param(200, 0.1, id="short"),
        pytest.param(2_000, 0.010, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
    ],
)
async def test_a_reader_that_is_ten_times_slower(namespace: str, count: int, gap: float) -> None:
    """Bounded memory, all chunks arrive, and the writer's loop stays responsive."""
    nbytes, pause = 256 << 10, 0.004
    async with no_leaks(mark=namespace), _peer() as peer, _open("sender", "0", namespace) as tx:
        side = await _away(peer, "receiver", "1", namespace)
        reading = asyncio.create_task(
            side.use(f"{TRAFFIC}:read_slowly", key="k", nbytes=nbytes, pause=pause)
        )
        pids = (os.getpid(), peer.pid)
        before, most = [resident(pid) for pid in pids], 0
        alone: list[float] = []
        beside: list[float] = []
        async with tx.edge("0", "1").writer("k") as stream:

            async def write(numbers: range) -> None:
                nonlocal most
                for number in numbers:
                    await stream.send(pattern_array(nbytes, number))
                    most = max(most, tx.health().pool_used)

            part = count // ROUNDS
            for turn in range(ROUNDS):  # by turns, for others use this machine too
                alone += await _gaps(asyncio.sleep(part * pause))
                beside += await _gaps(write(range(turn * part, (turn + 1) * part)))
                await quiet(tx, within=10.0)  # the reader has caught up
        usual, late = _p999(alone), _p999(beside)
        received, wrong = await reading
        grown = max(resident(pid) - then for pid, then in zip(pids, before, strict=True))
        print(  # noqa: T201
            f"{count} x 256 KB: pool at most {most >> 20} MiB, grown {grown >> 20} MiB, "
            f"ticker alone {usual * 1e3:.1f} ms, beside {late * 1e3:.1f} ms (p99.9)"
        )
        assert (received, wrong) == (count, [])
        assert most <= 40 * (nbytes + 4096)  # a window, and what is being put
        assert grown < 64 << 20
        assert late <= usual + gap
        await still(LocalSide(tx), side)
        await quiet(tx)
        await side.close()


@pytest.mark.parametrize(
    ("count", "bound"),
    [
        pytest.param(10_000, 2.0, id="short"),
        pytest.param(100_000, 1.25, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
    ],
)
async def test_a_stream_that_is_long(namespace: str, count: int, bound: float) -> None:
    """Memory is flat, and a chunk costs at the end what it cost at the start."""
    block = count // 20
    async with no_leaks(mark=namespace), _peer() as peer, _open("sender", "0", namespace) as tx:
        side = await _away(peer, "receiver", "1", namespace)
        reading = asyncio.create_task(side.use(f"{TRAFFIC}:read_counting", key="k"))
        costs: list[float] = []
        began = 0.0
        sizes: list[tuple[int, int]] = []
        async with tx.edge("0", "1").writer("k") as stream:
            for number in range(count):
                if number % block == 0:
                    gc.collect()
                    sizes.append((resident(os.getpid()), resident(peer.pid)))
                    began = time.process_time()
                await stream.send({"n": number, "codes": list(range(40))})
                if number % block == block - 1:
                    costs.append((time.process_time() - began) / block)
        assert await reading == count
        first, last = statistics.median(costs[2:8]), statistics.median(costs[-6:])
        here, there = (after - early for early, after in zip(sizes[4], sizes[-1], strict=True))
        print(  # noqa: T201
            f"{count} chunks: {first * 1e6:.1f} µs each at the start, {last * 1e6:.1f} at the end; "
            f"grown {here:,} here and {there:,} there"
        )
        assert last <= first * bound
        assert here < 1 << 20
        assert there < 1 << 20
        await tx.drain()
        await still(LocalSide(tx), side)
        await side.close()


def resident(pid: int) -> int:
    """Private bytes of a process in memory; shared segments are bounded by the pool's limit."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * PAGE


async def _gaps(work: Any) -> list[float]:
    """The gaps between ticks of 1 ms while something is done."""
    task = asyncio.ensure_future(work)
    ticks = [time.monotonic()]
    while not task.done():
        await asyncio.sleep(0.001)
        ticks.append(time.monotonic())
    task.result()
    return [after - before for before, after in itertools.pairwise(ticks)]


def _p999(gaps: list[float]) -> float:
    return sorted(gaps)[int(len(gaps) * 0.999)]


def _arrived(rx: omni_async.Transport, edge: str) -> int:
    streams = rx.health().streams
    return streams[edge].chunks if edge in streams else 0


async def _lost(use: Any) -> None:
    with contextlib.suppress(PeerGone):
        await use


def _open(role: Any, stage: str, namespace: str) -> Any:
    return omni_async.open_transport("shm", role=role, stage=stage, namespace=namespace, linger=0.0)


async def _away(peer: PeerProcess, role: str, stage: str, namespace: str) -> RemoteSide:
    return await peer.open(f"{role}-{stage}", "shm", role=role, stage=stage, namespace=namespace)


@contextlib.asynccontextmanager
async def _peer() -> AsyncIterator[PeerProcess]:
    peer = PeerProcess()
    try:
        with peer.attached():
            yield peer
    finally:
        peer.close()
