"""KV caches between processes: a source whose time is over is not free, or not believed, while it is still copied."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
from omni_async.errors import TransferCancelled, TransferTimeout
from omni_async.kv import gather
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.cases.caches import LATE, both
from tests.ends import ends
from tests.kv.pairs import SOURCE, TARGET, loopbacks


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    with loopbacks():
        yield


# --- D10: a time limit frees the source while the peer still copies -------------------------------


def deafen(target: Any) -> None:
    """From now on it hears nothing, as if it were stopped."""
    target.unheard = []
    target.end.heard = lambda line, body: target.unheard.append((line, body))


async def heard_late(target: Any) -> None:
    """Its reads end, and then it hears all."""
    while target.end.under_way:  # noqa: ASYNC110 - the end of the reads themselves
        await asyncio.sleep(0.001)
    del target.end.heard
    for line, body in target.unheard:
        target.end.heard(line, body)


async def test_a_source_that_times_out_is_not_free_while_it_is_written_from(
    namespace: str,
) -> None:
    with ends("loopback-write", namespace) as where:
        async with both(where, transfer_timeout=0.2) as (source, target):
            progress = await target.end.receive("r", TARGET)
            session = await source.end.write_to("r", SOURCE)
            FAULTS.order(Fault(kind="stuck", landed=0.5))
            for layer in range(3):
                session.layer_ready(layer)
            await session.seal()
            await FAULTS.until_stuck()
            waiting = asyncio.ensure_future(session.delivered())
            with pytest.raises((TransferTimeout, TransferCancelled)):
                await progress.all(timeout=5)
            await asyncio.sleep(0.3)  # far beyond the limit
            assert not waiting.done()
            FAULTS.release()
            with pytest.raises((TransferTimeout, TransferCancelled)):
                await waiting
            source.fill(9, SOURCE)
            await progress.released(timeout=2)


async def test_what_is_read_from_a_source_that_timed_out_is_not_believed(namespace: str) -> None:
    with ends("loopback-read", namespace) as where:
        async with both(where, transfer_timeout=LATE) as (source, target):
            source.end.transfer_timeout = 0.2  # the reader is the patient one
            session = await source.end.offer("r", SOURCE)
            FAULTS.order(Fault(kind="stuck", landed=0.5))
            progress = await target.end.receive("r", TARGET, mode="read")
            await FAULTS.until_stuck()
            deafen(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await session.delivered(timeout=5)
            source.fill(9, SOURCE)  # at once
            FAULTS.release()
            await heard_late(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await progress.all(timeout=5)
            await progress.released(timeout=2)


async def test_what_is_mapped_from_a_source_that_timed_out_is_not_believed(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> None:
        inside.set()
        assert go_on.wait(10)
        gather.carry(*arguments)

    monkeypatch.setattr("omni_async.kv.mapped.carry", slowly)
    with ends("shm", namespace) as where:
        async with both(where, transfer_timeout=LATE) as (source, target):
            source.end.transfer_timeout = 0.2
            session = await source.end.offer("r", SOURCE)
            progress = await target.end.receive("r", TARGET, mode="read")
            assert await asyncio.to_thread(inside.wait, 5)
            deafen(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await session.delivered(timeout=5)
            source.fill(9, SOURCE)
            go_on.set()
            await heard_late(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await progress.all(timeout=5)
            await progress.released(timeout=2)
