"""Puts and gets in a row: memory stays what it was after the first ones.

In: a count. Out: resident memory of both processes within a bound.
Never: takes a warm-up for growth.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

import omni_async
from omni_async.testing.leaks import no_leaks, quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern_array

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZES = (0, 100, 1500, 5_000, 60_000, 400_000)
GROWTH = 3 << 20
"""Bytes that a process may grow after the warm-up: what an allocator keeps for itself."""


def resident(pid: int) -> int:
    """Private bytes of a process in memory; shared segments are bounded by the pool's limit."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * PAGE


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(2_000, id="short"),
        pytest.param(20_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("connector", ["memory", "shm"])
async def test_in_one_loop(namespace: str, connector: str, count: int) -> None:
    async with no_leaks(mark=namespace):
        async with (
            _open(connector, "sender", "0", namespace) as tx,
            _open(connector, "receiver", "1", namespace) as rx,
        ):
            start = 0
            for number in range(count):
                if number == count // 4:
                    gc.collect()
                    start = resident(os.getpid())
                size = SIZES[number % len(SIZES)]
                value = {"n": number, "data": pattern_array(size, number), "list": [number] * 20}
                await tx.put("0", "1", f"key-{number}", value)
                delivery = await rx.get("0", "1", f"key-{number}", timeout=10)
                assert delivery.value["n"] == number
                del delivery
            gc.collect()
            grown = resident(os.getpid()) - start
            print(f"{connector}: {count} puts and gets, grown {grown:,} bytes")  # noqa: T201
            await quiet(tx)
            await quiet(rx)
            assert grown < GROWTH


@pytest.mark.parametrize(
    "total",
    [
        pytest.param(400, id="short"),
        pytest.param(5_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
async def test_in_two_processes(namespace: str, total: int, tmp_path: Path) -> None:
    """Four streams of ``total`` payloads each, the sender in another process."""
    from omni_async.testing.sides import LocalSide
    from omni_async.testing.traffic import Ledger, consume

    streams, warm = 4, total // 4
    peer = PeerProcess()
    ledger = Ledger(tmp_path / "ledger", streams)
    try:
        with peer.attached():
            extra = {"memory_pool_size": 32 << 20}
            side = await peer.open(
                "tx", "shm", extra=extra, role="sender", stage="0", namespace=namespace
            )
            async with _open("shm", "receiver", "1", namespace) as rx:
                sizes: list[tuple[int, int]] = []
                for start, end in ((0, warm), (warm, total)):
                    producing = peer.call(
                        "use",
                        target="omni_async.testing.traffic:produce",
                        side=side.name,
                        starts=[start] * streams,
                        total=end,
                    )
                    wrong, _ = await _both(
                        consume(LocalSide(rx), os.fspath(tmp_path / "ledger"), streams, end),
                        producing,
                    )
                    assert not wrong
                    gc.collect()
                    sizes.append((resident(os.getpid()), resident(peer.pid)))
                here, there = (after - before for before, after in zip(*sizes, strict=True))
                print(f"two processes: grown {here:,} and {there:,} bytes")  # noqa: T201
                assert here < GROWTH
                assert there < GROWTH
                await quiet(rx)
            await side.close()
    finally:
        ledger.close()
        peer.close()


async def _both(first: Any, second: Any) -> tuple[Any, Any]:
    import asyncio

    found = await asyncio.gather(first, second)
    return found[0], found[1]


def _open(connector: str, role: Any, stage: str, namespace: str) -> Any:
    spec = {"name": connector, "extra": {"memory_pool_size": 32 << 20}}
    return omni_async.open_transport(spec, role=role, stage=stage, namespace=namespace)
