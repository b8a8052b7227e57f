"""Time limits, their phases and what they leave."""

from __future__ import annotations

import asyncio
import time

from ...errors import KeyNotFound, PoolExhausted, TransferTimeout
from ..recipes import literal, pattern
from ..rig import Rig
from ..sides import attempt
from .base import HERE, ONE_LOOP, Conformance, runs
from .lifecycle import until_parked


class Timeouts(Conformance):
    @runs(*HERE)
    async def test_asking_once_without_a_peer(self, rig: Rig) -> None:
        rx = await rig.receiver()
        began = time.monotonic()
        error = await attempt(rx.get("k", timeout=0))
        assert isinstance(error, KeyNotFound)
        assert not error.expired
        assert (error.key, error.edge) == ("k", ("0", "1"))
        assert time.monotonic() - began < 2

    @runs(*HERE)
    async def test_asking_once_with_a_peer(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for _ in range(3):
            error = await attempt(rx.get("k", timeout=0))
            assert isinstance(error, KeyNotFound)
            assert not error.expired
        await tx.put("k", pattern(10_000))
        assert (await rx.get("k", pattern(10_000), timeout=0)).wrong is None
        assert isinstance(await attempt(rx.get("k", timeout=0)), KeyNotFound)

    @runs(*ONE_LOOP)
    async def test_a_miss_is_no_error_of_the_transport(self, rig: Rig) -> None:
        _, rx = await rig.pair()
        await attempt(rx.get("k", timeout=0))
        health = await rx.health()
        assert (health.errors, health.timeouts, health.gets) == (0, 0, 0)

    @runs(*HERE)
    async def test_the_limit_passes_without_a_payload(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for with_peer in (True, False):
            if not with_peer:
                await tx.close()
            began = time.monotonic()
            error = await attempt(rx.get("k", timeout=0.2))
            took = time.monotonic() - began
            assert isinstance(error, TransferTimeout), error
            assert 0.15 < took < 3
            assert (error.key, error.edge, error.timeout) == ("k", ("0", "1"), 0.2)
            assert error.phase
            assert error.backend
            assert "'k'" in str(error)
            assert "0->1" in str(error)
        assert (await rx.health()).timeouts == 2
        await rig.quiet(rx)

    @runs(*HERE)
    async def test_a_get_that_timed_out_takes_nothing_later(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(await attempt(rx.get("k", timeout=0.05)), TransferTimeout)
        await tx.put("k", pattern(30_000))
        assert (await rx.get("k", pattern(30_000))).wrong is None

    @runs(*HERE)
    async def test_no_limit_and_the_default_wait(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        waiting = [
            asyncio.ensure_future(rx.get("none", literal(1), timeout=None)),
            asyncio.ensure_future(rx.get("default", literal(1))),
            asyncio.ensure_future(rx.get("inf", literal(1), timeout=float("inf"))),
        ]
        await until_parked(rx, 3)
        await asyncio.sleep(0.1)
        assert not any(get.done() for get in waiting)
        for key in ("none", "default", "inf"):
            await tx.put(key, literal(1))
        for get in waiting:
            assert (await get).wrong is None

    @runs(*HERE)
    async def test_put_under_a_limit(self, rig: Rig) -> None:
        tx = await rig.narrow_sender()
        nbytes = rig.room * 6 // 7
        await tx.put("first", pattern(nbytes))
        for timeout in (0, 0.2):
            began = time.monotonic()
            error = await attempt(tx.put("second", pattern(nbytes), timeout=timeout))
            took = time.monotonic() - began
            assert isinstance(error, PoolExhausted), error
            assert timeout * 0.7 <= took < timeout + 2
            assert error.nbytes >= nbytes
            assert rig.stored or error.limit == rig.room
            assert error.key == "second"

    @runs(*HERE)
    async def test_a_put_that_fits_never_waits(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("k", pattern(100_000), timeout=0)
        assert (await rx.get("k", pattern(100_000), timeout=5)).wrong is None
