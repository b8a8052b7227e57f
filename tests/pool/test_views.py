"""Views that outlive everything they came from."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import Any

import numpy as np
import pytest

from omni_async.abc import MemorySource
from omni_async.pool import DropQueue, Hold, Lease, ManagedBuffer, MemfdMemory, Pool, map_fd

from .conftest import Pools, settle


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    return seen


def _let_go(lease: Lease) -> None:
    lease.drop()


def _view(pool: Pool, queue: DropQueue, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    lease = pool.lease_nowait(nbytes)
    return np.asarray(Hold(lease.address, nbytes, lease, queue, lease.keep))


async def test_a_tensor_outlives_its_pool(
    make_pool: Pools, source: MemorySource, unraisable: list[Any]
) -> None:
    torch = pytest.importorskip("torch")
    pool = make_pool(1 << 20, source=source)
    queue = DropQueue(asyncio.get_running_loop(), _let_go)
    buffer = ManagedBuffer(_view(pool, queue, 4096))
    tensor = buffer.as_tensor(torch.float32, (32, 32))[3:]
    tensor[:] = 1.5
    raw = buffer.array.data[:16]
    buffer.release()
    queue.close()
    assert pool.close() == 0
    del pool, buffer, queue
    gc.collect()
    assert bool((tensor == 1.5).all())
    tensor += 1
    assert tensor.sum().item() == 2.5 * 29 * 32
    raw[0] = 3
    assert raw[0] == 3
    del tensor, raw
    gc.collect()
    assert unraisable == []


async def test_a_view_of_the_peers_memory_outlives_its_block(unraisable: list[Any]) -> None:
    owner = MemfdMemory().allocate(1 << 20)
    owner.view()[:] = b"z" * (1 << 20)
    queue = DropQueue(asyncio.get_running_loop(), lambda token: None)
    arrays: list[Any] = []
    for keep in ("block", "view"):
        block = map_fd(os.dup(owner.fd), 1 << 20)
        kept = block if keep == "block" else block.view()
        arrays.append(np.asarray(Hold(block.address + 100, 5000, keep, queue, kept)))
        block.close()
        del block, kept
    owner.close()
    del owner
    gc.collect()
    assert [array.tobytes() for array in arrays] == [b"z" * 5000] * 2
    while arrays:
        arrays.pop()[:] = 1
    queue.close()
    gc.collect()
    assert unraisable == []


async def test_memory_with_a_view_is_never_handed_out_again(make_pool: Pools) -> None:
    pool = make_pool(64 * 100)
    queue = DropQueue(asyncio.get_running_loop(), _let_go)
    view = _view(pool, queue, 640)[100:200]
    view[:] = 77
    for _ in range(300):
        other = _view(pool, queue, 640)
        other[:] = 1
        del other
        await settle(queue)
    assert view.tolist() == [77] * 100
    del view
    await settle(queue)
    assert pool.live == 0
    queue.close()


async def test_a_released_slot_is_waited_for_through_the_queue(make_pool: Pools) -> None:
    pool = make_pool(6400)
    queue = DropQueue(asyncio.get_running_loop(), _let_go)
    view = _view(pool, queue, 6400)
    waiting = asyncio.ensure_future(pool.lease(6400))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    holder = [view]
    del view
    await loop.run_in_executor(None, holder.clear)  # the last view dies in another thread
    (await asyncio.wait_for(waiting, 30)).drop()
    queue.close()


async def test_20000_leases_leave_nothing(make_pool: Pools) -> None:
    pool = make_pool(1 << 20)
    queue = DropQueue(asyncio.get_running_loop(), _let_go)

    async def some() -> None:
        for _ in range(100):
            _view(pool, queue, 640)
        await settle(queue)

    await some()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        await some()
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert pool.live == 0
    queue.close()
