"""A producer is given up while it writes, and its bytes come when the blocks hold something else."""

from __future__ import annotations

import asyncio

import pytest

import omni_async
from omni_async.registry import register_backend
from omni_async.testing.doubles import loopback
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.ends import ends
from tests.kv.pairs import SOURCE, TARGET, joined, pair

LARGE = {"block_size": 64, "head_size": 512}
"""Pieces that nobody gathers, so that they are written into the blocks themselves."""


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch, doubles: None) -> None:
    register_backend(loopback.LoopbackWriteByRegion())
    monkeypatch.setattr("omni_async.kv.producer.SETTLE_SECONDS", 0.05)


@pytest.mark.parametrize("shared", [True, False], ids=["KVMemory", "tensors"])
@pytest.mark.parametrize("backend", ["loopback-write", "loopback-write-region"])
async def test_a_late_write_lands_where_nobody_looks(
    backend: str, shared: bool, namespace: str
) -> None:
    source, target = pair(LARGE, LARGE, shared=shared)
    with ends(backend, namespace) as where:
        async with joined(where, source, target) as (producer, consumer):
            progress = await consumer.receive("r", TARGET)
            session = await producer.write_to("r", SOURCE)
            FAULTS.order(Fault(kind="stuck", landed=0.5))
            session.layer_ready(0)
            await FAULTS.until_stuck()
            await producer.aclose()  # and it cannot say any more when that write ends
            with pytest.raises(omni_async.PeerLost):
                await progress.all(timeout=2)
            assert consumer.quarantined == set(TARGET)
            await progress.released(timeout=3)
            assert FAULTS.stuck
            target.fill(7, TARGET)
            FAULTS.release()
            with pytest.raises(omni_async.OmniAsyncError):
                await session.delivered(timeout=2)
            while producer.under_way:  # noqa: ASYNC110 - the end of the write itself
                await asyncio.sleep(0.001)
            assert not target.wrong(7, TARGET, target.layout, TARGET)


async def test_tensors_may_be_written_to_directly_when_that_is_asked_for(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a lost producer's blocks are not given out before the consumer is closed, which says so."""
    monkeypatch.setattr("omni_async.kv.consumer.SETTLE_SECONDS", 0.05)
    source, target = pair(LARGE, LARGE, shared=False)
    with ends("loopback-write-region", namespace) as where:
        async with joined(where, source, target, landing="direct") as (producer, consumer):
            progress = await consumer.receive("r", TARGET)
            session = await producer.write_to("r", SOURCE)
            FAULTS.order(Fault(kind="stuck"))
            session.layer_ready(0)
            await FAULTS.until_stuck()
            await producer.aclose()
            with pytest.raises(omni_async.PeerLost):
                await progress.all(timeout=2)
            with pytest.raises(omni_async.TransferTimeout):
                await progress.released(timeout=0.1)
            with pytest.warns(ResourceWarning, match="4 blocks may still be written to"):
                await consumer.aclose()
            with pytest.raises(omni_async.ClosedError, match="do not use them again"):
                await progress.released()
            FAULTS.release()
