"""A large payload travels while it is still being copied: what may end it halfway, and what then."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async._aio.copying import Piece
from omni_async.errors import ClosedError, EngineFault, KeyNotFound
from omni_async.registry import register_backend
from omni_async.testing.doubles.loopback import (
    FAULTS,
    LoopbackEngine,
    LoopbackWrite,
    until_stuck,
)
from omni_async.testing.doubles.ordered import Fault
from omni_async.testing.leaks import no_leaks, quiet
from omni_async.testing.recipes import pattern_array
from omni_async.transport import placing

NBYTES = 40 << 20
VALUE = pattern_array(NBYTES, 3)


class Halfway:
    """The copy stops in the middle until it is told to go on."""

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self.go_on = asyncio.Event()
        self.fails: Exception | None = None

    async def copy(
        self, executor: object, pieces: Sequence[Piece], step: int, reached: Callable[[int], None]
    ) -> None:
        (to, source, nbytes) = max(pieces, key=lambda piece: piece[2])
        half = nbytes // 2
        ctypes.memmove(to, source, half)
        reached(to + half)
        self.there.set()
        waiting = asyncio.ensure_future(self.go_on.wait())
        cancelled = False
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                cancelled = True
        if self.fails is not None:
            raise self.fails
        for piece in pieces:
            ctypes.memmove(*piece)
        reached(to + nbytes)
        if cancelled:
            raise asyncio.CancelledError


@pytest.fixture
def halfway(monkeypatch: pytest.MonkeyPatch) -> Halfway:
    halfway = Halfway()
    monkeypatch.setattr(placing, "copy_in_order", halfway.copy)
    return halfway


@contextlib.asynccontextmanager
async def _pair(namespace: str) -> AsyncIterator[tuple[Any, Any]]:
    register_backend(LoopbackWrite())
    options: dict[str, Any] = {"namespace": namespace, "linger": 0.0}
    async with no_leaks(mark=namespace):
        async with (
            omni_async.open_transport("loopback-write", role="sender", stage="0", **options) as tx,
            omni_async.open_transport(
                "loopback-write", role="receiver", stage="1", **options
            ) as rx,
        ):
            yield tx, rx
        FAULTS.clear()


async def _settled(tx: Any, rx: Any) -> None:
    await quiet(tx)
    await quiet(rx)


async def test_the_beginning_travels_before_the_end_is_copied(
    namespace: str, halfway: Halfway, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = asyncio.Event()
    write = LoopbackEngine.write

    async def noted(self: LoopbackEngine, *args: Any) -> None:
        await write(self, *args)
        written.set()

    monkeypatch.setattr(LoopbackEngine, "write", noted)
    async with _pair(namespace) as (tx, rx):
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=10))
        putting = asyncio.create_task(tx.put("0", "1", "k", {"x": VALUE, "n": 1}))
        await halfway.there.wait()
        await asyncio.wait_for(written.wait(), 5)
        assert not putting.done()
        assert not getting.done()
        halfway.go_on.set()
        await putting
        delivery = await getting
        assert (delivery.value["x"] == VALUE).all()
        del delivery, getting
        await _settled(tx, rx)


@pytest.mark.parametrize("nbytes", [300 << 10, 1 << 20])
async def test_what_is_copied_on_the_loop_is_offered_before(
    namespace: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy takes as long as the offer and its answer, so it is made meanwhile."""
    async with _pair(namespace) as (tx, rx):
        offered: list[bool] = []

        def noted(*piece: int) -> None:
            offered.append(len(list(tx._sending.core.directory.entries())) == 1)
            ctypes.memmove(*piece)

        monkeypatch.setattr(placing, "copy", noted)
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=10))
        await tx.put("0", "1", "k", {"x": VALUE[:nbytes], "n": 1})
        assert offered == [True]
        delivery = await getting
        assert (delivery.value["x"] == VALUE[:nbytes]).all()
        del delivery, getting
        await _settled(tx, rx)


@pytest.mark.parametrize("shape", ["one", "many", "mixed"])
async def test_every_byte_arrives(namespace: str, shape: str) -> None:
    value: Any = VALUE
    if shape == "many":
        value = [VALUE[: 5 << 20].copy(), VALUE[:3].copy(), VALUE[: 7 << 20].copy(), "text"]
    elif shape == "mixed":  # strided: not to be copied by address alone
        value = [VALUE[: 12 << 20].reshape(-1, 2)[:, 0], VALUE[: 9 << 20]]
    async with _pair(namespace) as (tx, rx):
        for key in ("first", "second"):
            getting = asyncio.create_task(rx.get("0", "1", key, timeout=20))
            await tx.put("0", "1", key, value)
            delivery = await getting
            got = delivery.value if isinstance(value, list) else [delivery.value]
            sent = value if isinstance(value, list) else [value]
            assert all(map(np.array_equal, got, sent))
            del delivery, getting, got
            await _settled(tx, rx)


async def test_cancelled_before_anybody_claims_it(namespace: str, halfway: Halfway) -> None:
    async with _pair(namespace) as (tx, rx):
        putting = asyncio.create_task(tx.put("0", "1", "k", VALUE))
        await halfway.there.wait()
        putting.cancel()
        halfway.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await putting
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "k", timeout=0)
        await _settled(tx, rx)


async def test_cancelled_when_it_is_under_way(namespace: str, halfway: Halfway) -> None:
    async with _pair(namespace) as (tx, rx):
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=10))
        FAULTS.order(Fault("stuck"))
        putting = asyncio.create_task(tx.put("0", "1", "k", VALUE))
        await until_stuck()
        putting.cancel()
        await asyncio.sleep(0)
        halfway.go_on.set()
        FAULTS.release()
        with pytest.raises(asyncio.CancelledError):
            await putting
        delivery = await getting
        assert (delivery.value == VALUE).all()
        del delivery, getting
        await _settled(tx, rx)


async def test_cleaned_up_while_it_is_copied(namespace: str, halfway: Halfway) -> None:
    """The slot is not handed out under the copy."""
    async with _pair(namespace) as (tx, rx):
        putting = asyncio.create_task(tx.put("0", "1", "k", VALUE))
        await halfway.there.wait()
        assert await tx.cleanup("k") == 1
        assert tx.health().pool_used > NBYTES
        halfway.go_on.set()
        await putting
        await _settled(tx, rx)


async def test_a_copy_that_fails_fails_the_get_and_leaves_nothing(
    namespace: str, halfway: Halfway
) -> None:
    halfway.fails = ClosedError("its threads are gone")
    async with _pair(namespace) as (tx, rx):
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=10))
        putting = asyncio.create_task(tx.put("0", "1", "k", VALUE))
        await halfway.there.wait()
        for _ in range(500):  # its first pieces are written
            await asyncio.sleep(0.001)
            if tx.health().in_flight:
                break
        halfway.go_on.set()
        with pytest.raises(ClosedError):
            await putting
        with pytest.raises(EngineFault, match="could not copy"):
            await getting
        await tx.cleanup("k")
        await _settled(tx, rx)


@pytest.mark.filterwarnings("ignore:.*cannot be recalled:ResourceWarning")
async def test_closed_while_it_is_copied(namespace: str, halfway: Halfway) -> None:
    async with _pair(namespace) as (tx, _rx):
        putting = asyncio.create_task(tx.put("0", "1", "k", VALUE))
        await halfway.there.wait()
        closing = asyncio.create_task(tx.aclose())
        await asyncio.sleep(0.05)
        halfway.go_on.set()
        await closing
        await asyncio.wait({putting})
