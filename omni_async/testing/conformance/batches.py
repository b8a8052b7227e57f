"""Batches: one outcome for each key."""

from __future__ import annotations

import asyncio

from ...errors import EncodeError, KeyExists, KeyNotFound, TransferTimeout, UsageError
from ..recipes import literal, pattern
from ..rig import Rig
from ..sides import LocalSide
from .base import HERE, SENDER_HERE, Conformance, runs


class Batches(Conformance):
    @runs(*HERE)
    async def test_a_batch_arrives(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        values = {f"k{number}": pattern(number * 700, number) for number in range(30)}
        put = await tx.put_many(values)
        assert list(put) == list(values)
        assert all(outcome.receipt is not None for outcome in put.values())
        got = await rx.get_many(values)
        assert list(got) == list(values)
        assert [outcome.got.wrong for outcome in got.values() if outcome.got] == [None] * 30

    @runs(*HERE)
    async def test_empty_batches(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert await tx.put_many({}) == {}
        assert await rx.get_many({}) == {}

    @runs(*HERE)
    async def test_one_miss_spoils_nothing(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("there", pattern(30_000))
        for timeout, kind in ((0, KeyNotFound), (0.1, TransferTimeout)):
            outcomes = await rx.get_many(
                {"missing": literal(0), "there": pattern(30_000)}, timeout=timeout
            )
            missing, there = outcomes["missing"], outcomes["there"]
            assert missing.error is not None
            assert isinstance(missing.error.error(), kind)
            assert there.got is not None
            assert there.got.wrong is None
            await tx.put("there", pattern(30_000))
        await rx.get("there")

    @runs(*SENDER_HERE)
    async def test_one_refusal_spoils_nothing(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        await tx.put("claimed", literal(1), consumers=2)
        await rx.get("claimed")
        values = {"good": 1, "bad": object(), "": 2, "claimed": 3, "last": 4}
        outcomes = await tx.transport.put_many("0", "1", values)
        kinds = {key: type(outcome) for key, outcome in outcomes.items()}
        assert kinds["bad"] is EncodeError
        assert kinds[""] is UsageError
        if rig.facts.exclusive:  # else nobody knows who reads
            assert kinds["claimed"] is KeyExists
        for key, value in (("good", 1), ("last", 4)):
            assert (await rx.get(key, literal(value))).wrong is None
        await rx.get("claimed")
        await tx.cleanup("claimed")

    @runs(*HERE)
    async def test_a_batch_waits(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        values = {f"k{number}": pattern(5000, number) for number in range(10)}
        waiting = asyncio.ensure_future(rx.get_many(values))
        for key, recipe in reversed(values.items()):
            await tx.put(key, recipe)
        outcomes = await waiting
        assert [outcome.got.wrong for outcome in outcomes.values() if outcome.got] == [None] * 10
