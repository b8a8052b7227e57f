"""A cancellation at every await point of put and get in turn, and nothing is left of any of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from ...errors import KeyNotFound, PoolExhausted
from ..faults import CancelAt, Moment
from ..recipes import literal, pattern, pattern_array
from ..rig import Rig
from ..sides import LocalSide, Side, attempt
from .base import ONE_LOOP, RECEIVER_HERE, SENDER_HERE, Conformance, runs
from .lifecycle import until_waited

MOMENTS = pytest.mark.parametrize("moment", list(Moment), ids=lambda m: m.value)
SIZES = pytest.mark.parametrize("nbytes", [100, 150_000, 3 << 20])
BOUND = 200
"""More await points than any put or get has."""


class Cancellation(Conformance):
    @SIZES
    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_put(self, rig: Rig, moment: Moment, nbytes: int) -> None:
        tx, rx = await rig.pair()

        async def check(attempted: CancelAt) -> None:
            outcome = await attempt(rx.get("k", pattern(nbytes, 1), timeout=0))
            if attempted.cancelled:  # offered or not, but whole
                assert isinstance(outcome, KeyNotFound) or outcome.wrong is None
            else:
                assert attempted.error is None
                assert outcome.wrong is None
            await rig.quiet()
            await _works(tx, rx)

        await _each(moment, lambda: _put(tx, "k", nbytes), check)

    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_put_to_one_who_waits(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.pair()
        waiting: list[asyncio.Future[Any]] = []

        async def prepare() -> None:
            waiting.append(asyncio.ensure_future(attempt(rx.get("k", pattern(150_000, 1)))))
            await until_waited(rig, tx, rx, 1)

        async def check(attempted: CancelAt) -> None:
            if attempted.cancelled:
                await tx.put("k", pattern(150_000, 1))  # for the case that nothing was offered
            got = await asyncio.wait_for(waiting.pop(), 5)
            assert got.wrong is None
            await tx.cleanup("k")
            await rig.quiet()
            await _works(tx, rx)

        await _each(moment, lambda: _put(tx, "k", 150_000), check, prepare)

    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_put_that_waits_for_space(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.narrow_pair()
        nbytes = rig.room * 2 // 3

        fetching: list[asyncio.Task[None]] = []

        async def fetch(after: float) -> None:
            await asyncio.sleep(after)
            assert (await rx.get("first", pattern(nbytes, 2))).wrong is None

        async def prepare() -> None:
            await tx.put("first", pattern(nbytes, 2))
            if moment is Moment.READY:  # space comes, and with it the cancellation
                fetching.append(asyncio.create_task(fetch(0.02)))

        async def check(attempted: CancelAt) -> None:
            await (fetching.pop() if fetching else fetch(0))
            outcome = await attempt(rx.get("k", pattern(nbytes, 1), timeout=0))
            offered = not attempted.cancelled and attempted.error is None
            if rig.stored and attempted.cancelled:  # offered or not, but whole
                offered = not isinstance(outcome, KeyNotFound)
            assert outcome.wrong is None if offered else isinstance(outcome, KeyNotFound)
            assert attempted.error is None or isinstance(attempted.error, PoolExhausted)
            await rig.quiet()
            await _works(tx, rx)

        limit = None if moment is Moment.READY else 0.2  # where it is not cancelled, it ends so
        await _each(moment, lambda: _put(tx, "k", nbytes, limit), check, prepare, errors=True)

    @SIZES
    @MOMENTS
    @runs(*RECEIVER_HERE)
    async def test_get(self, rig: Rig, moment: Moment, nbytes: int) -> None:
        tx, rx = await rig.pair()

        async def prepare() -> None:
            await tx.put("k", pattern(nbytes, 1))

        async def check(attempted: CancelAt) -> None:
            delivery, attempted.result = attempted.result, None
            if attempted.cancelled:  # it stays on offer
                assert (await rx.get("k", pattern(nbytes, 1), timeout=5)).wrong is None
            else:
                assert attempted.error is None
                assert (delivery.value == pattern_array(nbytes, 1)).all()
            del delivery
            await rig.quiet()
            await _works(tx, rx)

        await _each(moment, lambda: _get(rx, "k"), check, prepare)

    @MOMENTS
    @runs(*RECEIVER_HERE)
    async def test_get_with_a_copy(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.pair()
        nbytes = 3 << 20

        async def prepare() -> None:
            await tx.put("k", pattern(nbytes, 1), consumers=2)

        async def check(attempted: CancelAt) -> None:
            attempted.result = None
            left = 2 if attempted.cancelled else 1
            for _ in range(left):
                assert (await rx.get("k", pattern(nbytes, 1), timeout=5)).wrong is None
            if rig.stored:  # kept until then
                await tx.cleanup("k")
            await self.gone(rx, "k")
            await rig.quiet()

        await _each(moment, lambda: _get(rx, "k", copy=True), check, prepare)

    @MOMENTS
    @runs(*RECEIVER_HERE)
    async def test_get_that_waits(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.pair()
        putting: list[asyncio.Task[None]] = []

        async def put() -> None:
            await asyncio.sleep(0.02)
            await tx.put("k", pattern(150_000, 1))

        async def prepare() -> None:
            putting.append(asyncio.create_task(put()))

        async def check(attempted: CancelAt) -> None:
            delivery, attempted.result = attempted.result, None
            await putting.pop()
            if attempted.cancelled:
                assert (await rx.get("k", pattern(150_000, 1), timeout=5)).wrong is None
            else:
                assert (delivery.value == pattern_array(150_000, 1)).all()
            del delivery
            await rig.quiet()
            await _works(tx, rx)

        await _each(moment, lambda: _get(rx, "k"), check, prepare)

    @MOMENTS
    @runs(*ONE_LOOP)
    async def test_get_that_waits_for_a_sender(self, rig: Rig, moment: Moment) -> None:
        rx = await rig.receiver()

        async def check(attempted: CancelAt) -> None:
            await rig.quiet(rx)

        await _each(moment, lambda: _get(rx, "k", timeout=0.1), check, errors=True)
        tx = await rig.sender()
        await _works(tx, rx)

    @MOMENTS
    @runs(*RECEIVER_HERE)
    async def test_asking_once(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.pair()

        async def check(attempted: CancelAt) -> None:
            await rig.quiet()
            await _works(tx, rx)

        await _each(moment, lambda: _get(rx, "none", timeout=0), check, errors=True)

    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_batches(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.pair()
        values = {f"k{number}": pattern_array(40_000, number) for number in range(3)}

        async def check(attempted: CancelAt) -> None:
            for number, key in enumerate(values):
                outcome = await attempt(rx.get(key, pattern(40_000, number), timeout=0))
                assert isinstance(outcome, KeyNotFound) or outcome.wrong is None
            await rig.quiet()

        assert isinstance(tx, LocalSide)
        transport = tx.transport
        await _each(moment, lambda: transport.put_many("0", "1", values), check)

    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_drain_and_allocate(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        transport = tx.transport
        await tx.put("k", literal(1))

        async def check(attempted: CancelAt) -> None:
            if attempted.result is not None and not isinstance(attempted.result, int):
                attempted.result.release()

        await _each(moment, lambda: transport.drain(0.02), check)
        assert (await rx.get("k", literal(1))).wrong is None
        await _each(moment, lambda: transport.allocate(10_000), check)
        await rig.quiet()

    @MOMENTS
    @runs(*ONE_LOOP)
    async def test_opening_and_closing(self, rig: Rig, moment: Moment) -> None:
        for role, stage in (("sender", "0"), ("receiver", "1")):
            for n in range(BOUND):
                opening = rig.opening(role, stage)  # type: ignore[arg-type]
                entering: CancelAt = CancelAt(n, moment)
                await entering.run(opening.__aenter__())
                assert entering.error is None
                if not entering.cancelled:
                    leaving: CancelAt = CancelAt(n, moment)
                    await leaving.run(opening.__aexit__(None, None, None))
                    transport, entering.result = entering.result, None
                    assert transport.closed
                    await transport.aclose()
                    if not entering.reached and not leaving.reached:
                        break
                await opening.__aexit__(None, None, None)


async def _each(
    moment: Moment,
    begin: Callable[[], Coroutine[Any, Any, Any]],
    check: Callable[[CancelAt], Awaitable[None]],
    prepare: Callable[[], Awaitable[None]] | None = None,
    *,
    errors: bool = False,
) -> None:
    """Cancel at each suspension in turn until the coroutine runs through without meeting it."""
    for n in itertools.count():
        assert n < BOUND, "it never came to its end"
        if prepare is not None:
            await prepare()
        attempted: CancelAt = CancelAt(n, moment)
        await attempted.run(begin())
        assert errors or attempted.error is None, f"suspension {n}: {attempted.error!r}"
        await check(attempted)
        if not attempted.reached:
            assert not attempted.cancelled
            return


async def _put(tx: Side, key: str, nbytes: int, limit: float | None = 30.0) -> None:
    assert isinstance(tx, LocalSide)
    await tx.transport.put("0", "1", key, pattern_array(nbytes, 1), timeout=limit)


async def _get(rx: Side, key: str, **options: Any) -> Any:
    assert isinstance(rx, LocalSide)
    return await rx.transport.get("0", "1", key, **options)


async def _works(tx: Side, rx: Side) -> None:
    """The next operation is none the wiser."""
    await tx.put("next", pattern(5000, 9))
    assert (await rx.get("next", pattern(5000, 9), timeout=5)).wrong is None
