"""Rounds: after many of them, worker, client and this process hold what they held before."""

from __future__ import annotations

import os

import pytest

from omni_async.cli.servers.yuanrong import YuanrongWorker

from .conftest import MIB, Open, Vendor, resident

GROWTH = 8 * MIB


@pytest.mark.parametrize(
    "rounds",
    [1000, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
)
async def test_rounds_leave_nothing(
    yuanrong_worker: YuanrongWorker, open_desk: Open, vendor: Vendor, rounds: int
) -> None:
    desk = await open_desk(yuanrong_worker, room=4 * MIB)
    pids = (yuanrong_worker.pid, desk.line.pid, os.getpid())

    async def some(count: int) -> None:
        for at in range(count):
            name = f"round-{at}:0_1"
            # Small, through the worker's shared memory, and in pieces.
            nbytes, pieces = ((4000, 1), (600_000, 1), (1_500_000, 2))[
                at % 20 % 3 if at % 20 > 17 else 0
            ]
            await desk.put_here(name, nbytes, pieces)
            assert await desk.size(name) == nbytes
            await desk.store.delete([name])

    await some(rounds // 5)  # what allocators and the vendor's arenas keep is kept by now
    before = [resident(pid) for pid in pids]
    allocated = vendor.allocated()
    await some(rounds)
    assert vendor.allocated() <= allocated
    grown = [resident(pid) - was for pid, was in zip(pids, before, strict=True)]
    assert max(grown[1:]) < GROWTH, grown
    assert grown[0] < 3 * GROWTH, grown  # its books of what was deleted
