"""Ordered faults between two processes: what they may do to memory, which is nothing.

In: reads that are slow, stuck, failing, late or out of bounds. Out: typed errors, slots that stay theirs for as long as
bytes may move, whole payloads before and after.
Never: lets a late byte land in the next request's buffer, or a source be used again while it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

import omni_async
from omni_async.errors import EngineFault, PeerLost, ProtocolError, TransferTimeout
from omni_async.registry import register_backend
from omni_async.rendezvous.zmq_line import ZmqLine
from omni_async.testing.doubles.ordered import ORDERED, Fault
from omni_async.testing.doubles.yuanrong_te import YuanrongTransferEngineDouble
from omni_async.testing.leaks import no_leaks, quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern, pattern_array
from omni_async.testing.rig import settle
from omni_async.testing.sides import RemoteSide
from tests.ends import Ends, ends

NBYTES = 1_000_000
POOL = 4 << 20
CONNECTOR = "yuanrong-te-double"
TARGET = "omni_async.testing.doubles.yuanrong_te:YuanrongTransferEngineDouble"
ORDERS = "omni_async.testing.doubles.ordered"


@pytest.fixture(scope="module")
def process() -> Iterator[PeerProcess]:
    """For tests that leave it alive."""
    peer = PeerProcess()
    yield peer
    peer.close()


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What the process keeps from its first line on is there before anybody counts."""
    register_backend(YuanrongTransferEngineDouble())

    async def once(pipeline: Ends) -> None:
        async with pipeline.open("sender", "0"), pipeline.open("receiver", "1"):
            pass

    with ends(CONNECTOR, "warm") as pipeline:
        asyncio.run(once(pipeline))


@pytest.fixture
def pipeline(namespace: str) -> Iterator[Ends]:
    with ends(CONNECTOR, namespace, memory_pool_size=POOL, inline_limit=256) as made:
        made.port()  # kept from here on, so that nobody takes it for a leak
        yield made
    ORDERED.clear()


class Apart(NamedTuple):
    """One end here, the other in a process of its own."""

    here: omni_async.Transport
    away: RemoteSide
    peer: PeerProcess

    async def order(self, **fault: Any) -> None:
        """For the next read there."""
        await self.peer.call("use", target=f"{ORDERS}:order", **fault)

    async def say(self, word: str) -> None:
        await self.peer.call("use", target=f"{ORDERS}:{word}")


@contextlib.asynccontextmanager
async def apart(pipeline: Ends, peer: PeerProcess, away: Any, **extra: Any) -> AsyncIterator[Apart]:
    """``away`` is the role of the other process."""
    here: Any = "receiver" if away == "sender" else "sender"
    stages = {"sender": "0", "receiver": "1"}
    with peer.attached():
        async with no_leaks(mark=pipeline.namespace):
            words = pipeline.options(away, stages[away], **extra)
            side = await peer.open("away", CONNECTOR, target=TARGET, **words)
            async with pipeline.open(here, stages[here], **extra) as transport:
                try:
                    yield Apart(transport, side, peer)
                finally:
                    ORDERED.clear()  # nothing ends while a read is stuck
                if peer.alive:
                    await side.close()


async def whole(here: omni_async.Transport, key: str, seed: int) -> None:
    """The payload arrives as it was put."""
    delivery = await here.get("0", "1", key, timeout=10)
    assert (delivery.value == pattern_array(NBYTES, seed)).all()


# --- the reader is here ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("failing", status=107), "acl rc=107"),
        pytest.param(Fault("failing", landed=0.5), "acl rc=-1", marks=pytest.mark.soak),
        pytest.param(Fault("failing", landed=1.0), "acl rc=-1", marks=pytest.mark.soak),
        (Fault("out_of_bounds"), "remote range is not registered"),
    ],
    ids=["at once", "in the middle", "at the end", "out of bounds"],
)
async def test_a_failure_is_an_error_and_the_payload_stays(
    pipeline: Ends, process: PeerProcess, fault: Fault, said: str
) -> None:
    async with apart(pipeline, process, "sender") as (rx, tx, _):
        await tx.put("k", pattern(NBYTES, 1))
        ORDERED.order(fault)
        with pytest.raises(EngineFault, match=said):
            await rx.get("0", "1", "k", timeout=10)
        await quiet(rx)
        await whole(rx, "k", 1)
        await settle(tx)
        assert rx.health().errors == 1


async def test_a_slow_read_is_waited_for(pipeline: Ends, process: PeerProcess) -> None:
    async with apart(pipeline, process, "sender") as (rx, tx, _):
        await tx.put("k", pattern(NBYTES, 1))
        ORDERED.order(Fault("slow", seconds=0.2))
        await whole(rx, "k", 1)


@pytest.mark.parametrize("kind", ["stuck", "late"])
@pytest.mark.parametrize("how", ["timeout", pytest.param("cancel", marks=pytest.mark.soak)])
async def test_what_comes_late_lands_in_nobodys_buffer(
    pipeline: Ends, process: PeerProcess, kind: str, how: str
) -> None:
    """The caller has given up, or the vendor has: the slots at both ends are kept until all has come."""
    async with apart(pipeline, process, "sender") as (rx, tx, _):
        await tx.put("late", pattern(NBYTES, 1))
        ORDERED.order(Fault(kind, landed=0.5))
        limit = 0.3 if how == "timeout" else 10
        getting = asyncio.create_task(rx.get("0", "1", "late", timeout=limit))
        await ORDERED.until_stuck()
        if how == "cancel":
            getting.cancel()
        await asyncio.wait({getting})
        assert getting.cancelled() or isinstance(getting.exception(), TransferTimeout)
        assert rx.health().quarantined == 1
        landing = rx.health().pool_used
        source = (await tx.health()).pool_used
        assert min(landing, source) >= NBYTES

        for seed in (2, 3):  # their reads wait for the thread, in slots of their own
            await tx.put(f"k{seed}", pattern(NBYTES, seed))
        others = asyncio.gather(*(whole(rx, f"k{seed}", seed) for seed in (2, 3)))
        await asyncio.sleep(0.1)
        assert not others.done()
        assert rx.health().quarantined == 1
        ORDERED.release()
        await others
        await quiet(rx)
        await whole(rx, "late", 1)  # it stayed on offer
        await settle(tx)
        await quiet(rx)


async def test_a_failure_waits_for_what_comes_late(pipeline: Ends, process: PeerProcess) -> None:
    """Nobody has given up; the error comes when the slot is nobody's."""
    async with apart(pipeline, process, "sender") as (rx, tx, _):
        await tx.put("k", pattern(NBYTES, 1))
        ORDERED.order(Fault("late", landed=0.25))
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=10))
        await ORDERED.until_stuck()
        done, _ = await asyncio.wait({getting}, timeout=0.2)
        assert not done
        assert rx.health().pool_used >= NBYTES
        ORDERED.release()
        with pytest.raises(EngineFault):
            await getting
        await quiet(rx)
        await whole(rx, "k", 1)


@pytest.mark.soak
async def test_a_sender_that_is_killed_under_a_read(pipeline: Ends) -> None:
    peer = PeerProcess()
    try:
        async with apart(pipeline, peer, "sender") as (rx, tx, _):
            await tx.put("k", pattern(NBYTES, 1))
            ORDERED.order(Fault("stuck", landed=0.5))
            getting = asyncio.create_task(rx.get("0", "1", "k", timeout=10))
            await ORDERED.until_stuck()
            peer.kill()
            ORDERED.release()
            await asyncio.wait({getting})
            assert isinstance(getting.exception(), (PeerLost, EngineFault))
            await quiet(rx)
    finally:
        peer.close()


# --- the reader is the other one ------------------------------------------------------------------


async def test_the_source_is_kept_for_as_long_as_it_is_read(
    pipeline: Ends, process: PeerProcess
) -> None:
    """Cleaned up under the read: what is put meanwhile gets other memory."""
    async with apart(pipeline, process, "receiver") as there:
        tx, rx, _ = there
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        await there.order(kind="stuck", landed=0.5)
        getting = asyncio.create_task(rx.get("k", pattern(NBYTES, 1), timeout=10))
        await there.say("until_stuck")
        await tx.cleanup("k")
        assert tx.health().pool_used >= NBYTES
        for seed in (2, 3):
            await tx.put("0", "1", f"k{seed}", pattern_array(NBYTES, seed), timeout=1)
        await there.say("release")
        got = await getting
        assert got.wrong is None
        await tx.cleanup("k2")
        await tx.cleanup("k3")
        await quiet(tx)


@pytest.mark.parametrize("kind", ["failing", "late"])
async def test_the_source_is_kept_until_a_failed_read_has_ended(
    pipeline: Ends, process: PeerProcess, kind: str
) -> None:
    async with apart(pipeline, process, "receiver") as there:
        tx, rx, _ = there
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        await there.order(kind=kind, landed=0.5)
        getting = asyncio.create_task(rx.get("k", timeout=10))
        if kind == "late":
            await there.say("until_stuck")
            await tx.cleanup("k")
            await asyncio.sleep(0.1)
            assert tx.health().pool_used >= NBYTES
            await there.say("release")
        with pytest.raises(EngineFault):
            await getting
        await tx.cleanup("k")
        await quiet(tx)


async def test_a_receiver_that_is_killed_under_a_read(pipeline: Ends) -> None:
    """Its line proves nothing, and need not: what it had read it would have had to confirm."""
    peer = PeerProcess()
    try:
        async with apart(pipeline, peer, "receiver") as there:
            tx, rx, _ = there
            await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
            await there.order(kind="stuck", landed=0.5)
            getting = asyncio.create_task(_dropped(rx))
            await there.say("until_stuck")
            peer.kill()
            await getting
            await quiet(tx, pool_used=None)
            async with pipeline.open("receiver", "1") as another:  # it stayed on offer
                await whole(another, "k", 1)
                await quiet(another)
            await quiet(tx)
    finally:
        peer.close()


@pytest.mark.soak
async def test_a_receiver_that_was_given_up_believes_nothing_that_it_read(
    pipeline: Ends,
) -> None:
    """It stands still for longer than the sender waits; its source is somebody else's by the time it reads on."""
    peer = PeerProcess()
    try:
        async with apart(pipeline, peer, "receiver", peer_timeout=1.5) as there:
            tx, rx, _ = there
            await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
            await there.order(kind="stuck")
            getting = asyncio.create_task(rx.get("k", pattern(NBYTES, 1), timeout=20))
            await there.say("until_stuck")
            peer.stop()
            await quiet(tx, pool_used=None, within=15)
            await tx.cleanup("k")
            await quiet(tx)
            await tx.put("0", "1", "other", pattern_array(NBYTES, 2))
            peer.resume()
            await there.say("release")
            with pytest.raises(PeerLost):
                await getting
            got = await rx.get("other", pattern(NBYTES, 2), timeout=10)
            assert got.wrong is None
    finally:
        peer.close()


async def test_what_a_receiver_reads_that_was_given_up_without_hearing_of_it(
    pipeline: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line stands as far as it knows, and its read ends well; the source is somebody else's by then."""
    async with pipeline.open("sender", "0") as tx, pipeline.open("receiver", "1") as rx:
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        ORDERED.order(Fault("stuck"))
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=2))
        try:
            await ORDERED.until_stuck()
            receivers = tx._sending.receivers
            [line] = receivers.channels.values()
            with monkeypatch.context() as patch:
                patch.setattr(ZmqLine, "close", lambda self: None)  # the word of the end is lost
                receivers.ended(line, ProtocolError("silent for too long"))
            await tx.cleanup("k")
            await quiet(tx)
            await tx.put("0", "1", "other", pattern_array(NBYTES, 2))  # where the other one lay
        finally:
            ORDERED.release()
        with pytest.raises((TransferTimeout, PeerLost)):
            await getting
        await quiet(rx)
        line.close()


async def _dropped(rx: RemoteSide) -> None:
    with contextlib.suppress(Exception):
        await rx.get("k", timeout=10)
