"""``None``, nothing, something empty and a failure are four outcomes."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from ...errors import KeyNotFound, TransferTimeout
from ..recipes import literal, pattern, sample
from ..rig import Rig
from ..sides import attempt
from .base import HERE, ONE_LOOP, Conformance, runs
from .lifecycle import until_parked

FALSY: list[Any] = [None, False, 0, 0.0, "", [], {}]


class Absence(Conformance):
    @runs(*HERE)
    async def test_falsy_values_are_values(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for number, value in enumerate(FALSY):
            await tx.put(f"k{number}", literal(value))
            got = await rx.get(f"k{number}", literal(value), timeout=0)
            assert got.wrong is None
            assert got.kind == type(value).__name__
        for name in ("empty bytes", "empty str"):
            await tx.put(name, sample(name, "scalars"))
            assert (await rx.get(name, sample(name, "scalars"))).wrong is None
        await tx.put("empty array", pattern(0))
        assert (await rx.get("empty array", pattern(0))).wrong is None

    @runs(*HERE)
    async def test_falsy_values_wake_who_waits(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        waiting = [
            asyncio.ensure_future(rx.get(f"k{number}", literal(value)))
            for number, value in enumerate(FALSY)
        ]
        await until_parked(rx, len(FALSY))
        for number, value in enumerate(FALSY):
            await tx.put(f"k{number}", literal(value))
        assert [got.wrong for got in await asyncio.gather(*waiting)] == [None] * len(FALSY)

    @runs(*HERE)
    async def test_absent_is_an_error_and_of_its_own_kind(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("None", literal(None))
        assert (await rx.get("None", timeout=0)).kind == "NoneType"
        assert isinstance(await attempt(rx.get("None", timeout=0)), KeyNotFound)
        assert isinstance(await attempt(rx.get("None", timeout=0.02)), TransferTimeout)

    @runs(*ONE_LOOP)
    async def test_an_empty_delivery_is_a_delivery(self, rig: Rig) -> None:
        async with rig.opening("sender", "0") as tx, rig.opening("receiver", "1") as rx:
            receipt = await tx.put("0", "1", "k", np.empty((0, 4), np.float32))
            delivery = await rx.get("0", "1", "k")
            assert receipt.nbytes == delivery.nbytes
            assert delivery.value.shape == (0, 4)
            assert (tx.health().puts, rx.health().gets) == (1, 1)
            del delivery
