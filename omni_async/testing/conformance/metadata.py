"""Receipts, and the handles that a control plane may carry."""

from __future__ import annotations

import json

import pytest

from ...errors import KeyNotFound
from ..recipes import literal, pattern
from ..rig import Rig
from ..sides import attempt
from .base import HERE, Conformance, runs


class Metadata(Conformance):
    @runs(*HERE)
    async def test_a_receipt_tells_size_and_source(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for key, recipe, fast in (
            ("array", pattern(5000), True),
            ("tree", literal({"a": [1]}), False),
        ):
            receipt = await tx.put(key, recipe)
            if receipt.metadata is None:
                pytest.skip("stores have no metadata")
            assert json.loads(json.dumps(receipt.metadata)) == receipt.metadata
            assert receipt.metadata["data_size"] == receipt.nbytes
            assert receipt.metadata["is_fast_path"] is fast
            assert isinstance(receipt.metadata["source_host"], str)
            assert isinstance(receipt.metadata["source_port"], int)
            assert (await rx.get(key, recipe)).nbytes == receipt.nbytes
        assert (await tx.put("array", pattern(5000))).nbytes == 5000

    @runs(*HERE)
    async def test_whole_partial_and_absent(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for name in ("whole", "partial", "absent"):
            receipt = await tx.put(name, pattern(20_000))
            metadata = receipt.metadata
            if metadata is None:
                pytest.skip("stores have no metadata")
            if name == "partial":
                metadata = {n: metadata[n] for n in ("source_host", "source_port")}
            given = None if name == "absent" else metadata
            assert (await rx.get(name, pattern(20_000), metadata=given)).wrong is None

    @runs(*HERE)
    async def test_metadata_leads_to_the_sender_it_came_from(self, rig: Rig) -> None:
        near, far = await rig.sender(), await rig.sender(rank=1)
        rx = await rig.receiver()
        await near.put("k", literal("near"))
        receipt = await far.put("k", literal("far"))
        if receipt.metadata is None:
            pytest.skip("stores have no metadata: a receiver is told of a rank by expect_sender")
        got = await rx.get("k", literal("far"), metadata=receipt.metadata)
        assert got.wrong is None
        assert (await rx.get("k", literal("near"))).wrong is None

    @runs(*HERE)
    async def test_the_configured_sender_can_be_updated(self, rig: Rig) -> None:
        far = await rig.sender(rank=1)
        rx = await rig.receiver()
        receipt = await far.put("k", literal("far"))
        if receipt.metadata is None:
            pytest.skip("stores have no metadata")
        host, port = receipt.metadata["source_host"], receipt.metadata["source_port"]
        await rx.update_sender_info(host, port)
        assert (await rx.get("k", literal("far"))).wrong is None

    @runs(*HERE)
    async def test_metadata_of_a_payload_that_is_gone(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        receipt = await tx.put("k", literal(1))
        await rx.get("k", metadata=receipt.metadata)
        error = await attempt(rx.get("k", metadata=receipt.metadata, timeout=0))
        assert isinstance(error, KeyNotFound)
