"""Counters, gauges and facts."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from ...errors import EncodeError, TransferTimeout
from ..recipes import literal, pattern
from ..rig import Rig, settle
from ..sides import LocalSide, attempt
from .base import HERE, ONE_LOOP, Conformance, runs
from .lifecycle import until_parked

SEED_KEYS = {
    *("status", "backend", "host", "pool_device", "pool_size"),
    *("puts", "gets", "bytes_transferred", "errors", "timeouts"),
}
GAUGES = {"in_flight", "parked", "pool_used", "quarantined"}


class Observing(Conformance):
    @runs(*HERE)
    async def test_counters_count(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for number in range(3):
            await tx.put(f"k{number}", pattern(10_000, number))
            await rx.get(f"k{number}")
        await attempt(rx.get("missing", timeout=0.02))
        sent, received = await tx.health(), await rx.health()
        assert (sent.puts, sent.gets, sent.bytes_transferred) == (3, 0, 30_000)
        assert (received.puts, received.gets, received.bytes_transferred) == (0, 3, 30_000)
        assert (sent.errors, sent.timeouts) == (0, 0)
        assert (received.errors, received.timeouts) == (0, 1)

    @runs(*ONE_LOOP)
    async def test_errors_count(self, rig: Rig) -> None:
        async with rig.opening("sender", "0") as tx:
            with pytest.raises(EncodeError):
                await tx.put("0", "1", "k", object())
            assert tx.health().errors == 1

    @runs(*HERE)
    async def test_gauges_show_what_is_held(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        waiting = asyncio.ensure_future(rx.get("later", literal(1), timeout=10))
        await until_parked(rx, 1)
        await tx.put("k", pattern(400_000))
        assert rig.stored or (await tx.health()).pool_used >= 400_000
        await rx.get("k", keep="held")
        held = (await tx.health()).pool_used + (await rx.health()).pool_used
        assert held >= 400_000
        await rx.forget("held")
        await settle(rx, parked=1)
        await tx.put("later", literal(1))
        await waiting
        await rig.quiet()

    @runs(*HERE)
    async def test_health_is_flat_and_complete(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=4 << 20)
        for side in (tx, rx):
            flat = (await side.health()).as_dict()
            assert set(flat) >= SEED_KEYS | GAUGES
            assert not any(isinstance(value, (dict, list, tuple)) for value in flat.values())
            json.dumps(flat)
            assert flat["status"] == "healthy"
            assert flat["pool_size"] == 4 << 20
        await tx.close()
        assert (await tx.health()).as_dict()["status"] == "closed"

    @runs(*ONE_LOOP)
    async def test_capabilities_are_facts(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        facts = tx.transport.capabilities
        assert facts == await rx.capabilities()
        with pytest.raises((AttributeError, TypeError)):
            facts.verb = "other"  # type: ignore[misc,assignment]
        assert facts.backend == (await tx.health()).backend
        assert msgspec.to_builtins(facts)["verb"] in ("map", "write", "read", "store")

    @runs(*ONE_LOOP)
    async def test_an_edge_is_the_same_calls(self, rig: Rig) -> None:
        async with rig.opening("sender", "0") as tx, rig.opening("receiver", "1") as rx:
            out, into = tx.edge(0, "1"), rx.edge("0", 1)
            receipt = await out.put("k", [1, 2], request_id="r", consumers=1, timeout=5)
            delivery = await into.get("k", receipt.metadata, timeout=5)
            assert delivery.value == [1, 2]
            await out.put_many({"a": 1, "b": 2})
            got = await into.get_many(["a", "b"], timeout=5)
            values = [d.value for d in got.values() if not isinstance(d, BaseException)]
            assert values == [1, 2]
            with pytest.raises(TransferTimeout):
                await into.get("none", timeout=0.01)
