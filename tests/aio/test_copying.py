"""Copies: right bytes at any size, off the loop when large, finished before a cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from omni_async._aio import copying
from omni_async._aio.copying import INLINE_COPY, PIECE, copy, copy_large
from omni_async._aio.executor import OwnedExecutor
from omni_async.errors import ClosedError


@pytest.fixture(params=[1, 3])
def executor(request: pytest.FixtureRequest) -> Iterator[OwnedExecutor]:
    owned = OwnedExecutor("copy", request.param)
    yield owned
    owned.close()


def array(nbytes: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("nbytes", [0, 1, 100, 64 << 10, (64 << 10) + 1, 3 << 20])
def test_copy(nbytes: int) -> None:
    source, target = array(nbytes), np.zeros(nbytes + 1, np.uint8)
    copy(target.ctypes.data, source.ctypes.data, nbytes)
    assert (target[:nbytes] == source).all()
    assert target[nbytes] == 0


SIZES = [0, 1, INLINE_COPY, INLINE_COPY + 1, PIECE, PIECE + 1, 3 * PIECE + 7]


@pytest.mark.parametrize("nbytes", SIZES)
async def test_copy_large(executor: OwnedExecutor, nbytes: int) -> None:
    source, target = array(nbytes), np.zeros(nbytes + 1, np.uint8)
    await copy_large(executor, [(target.ctypes.data, source.ctypes.data, nbytes)])
    assert (target[:nbytes] == source).all()
    assert target[nbytes] == 0
    assert (executor.started > 0) == (nbytes > INLINE_COPY)


async def test_many_pieces(executor: OwnedExecutor) -> None:
    sizes = [5, 0, INLINE_COPY, 700_001, 2 * PIECE, 1]
    sources = [array(size, seed) for seed, size in enumerate(sizes)]
    targets = [np.zeros(size, np.uint8) for size in sizes]
    await copy_large(
        executor,
        [
            (target.ctypes.data, source.ctypes.data, len(source))
            for target, source in zip(targets, sources, strict=True)
        ],
    )
    for source, target in zip(sources, targets, strict=True):
        assert (source == target).all()


async def test_nothing_to_copy(executor: OwnedExecutor) -> None:
    await copy_large(executor, [])
    assert executor.started == 0


async def test_cancelled_copy_ends_first(
    executor: OwnedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces under way end, the others are left out, and nothing is written afterwards."""
    began, go = threading.Event(), threading.Event()
    done: list[int] = []

    def slow(destination: int, source: int, nbytes: int) -> None:
        began.set()
        go.wait(10)
        done.append(destination)

    monkeypatch.setattr(copying, "_released", slow)
    task = asyncio.ensure_future(copy_large(executor, [(0, 0, 40 * PIECE)]))
    assert await asyncio.to_thread(began.wait, 10)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    go.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert 1 <= len(done) <= executor.limit
    await executor.run(int)
    assert len(done) <= executor.limit


async def test_loop_goes_on_meanwhile(
    executor: OwnedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(copying, "_released", lambda *piece: go.wait(10))
    task = asyncio.ensure_future(copy_large(executor, [(0, 0, 2 * PIECE)]))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not task.done()
    go.set()
    await task


async def test_closed_executor() -> None:
    executor = OwnedExecutor("x", 1)
    executor.close()
    with pytest.raises(ClosedError):
        await copy_large(executor, [(0, 0, PIECE)])


async def test_small_copy_does_not_wait_behind_a_large_one() -> None:
    executor = OwnedExecutor("x", 1)
    source, target = np.ones(12 * PIECE, np.uint8), np.ones(12 * PIECE, np.uint8)
    small, out = array(INLINE_COPY + 1), np.zeros(INLINE_COPY + 1, np.uint8)
    order: list[str] = []

    async def run(name: str, piece: tuple[int, int, int]) -> None:
        await copy_large(executor, [piece])
        order.append(name)

    large = asyncio.ensure_future(
        run("large", (target.ctypes.data, source.ctypes.data, len(source)))
    )
    await asyncio.sleep(0)
    await run("small", (out.ctypes.data, small.ctypes.data, len(small)))
    await large
    assert order == ["small", "large"]
    executor.close()
