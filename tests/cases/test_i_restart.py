"""I, restart: a stage that was killed comes back, and the survivor goes on without being touched."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

import omni_async
from omni_async.errors import PeerLost, TransferTimeout
from omni_async.testing.leaks import quiet
from omni_async.testing.orders import PeerGone
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import literal, pattern, pattern_array
from omni_async.testing.sides import RemoteSide
from tests.ends import HOST, Ends, ends, led

BIG = 24 << 20
FAST = 2.0
"""Seconds in which what was in flight has to fail."""
RECOVERY = 3.0
"""Seconds in which the next request has to be through, once the other one is back."""

MOVES = pytest.mark.parametrize("moves", [False, True], ids=["same port", "other port"])


async def fails_fast(get: asyncio.Future[omni_async.Delivery], killed: float) -> None:
    """By ``PeerLost``, unless it was through already."""
    await asyncio.wait({get}, timeout=FAST)
    assert get.done(), "it still waits"
    assert time.monotonic() - killed < FAST
    error = get.exception()
    assert error is None or (isinstance(error, PeerLost) and error.peer), error


async def goes_through(rx: omni_async.Transport, key: str, seed: int) -> None:
    began = time.monotonic()
    delivery = await rx.get("0", "1", key, timeout=RECOVERY)
    assert time.monotonic() - began < RECOVERY
    assert (delivery.value == pattern_array(300_000, seed)).all()
    del delivery


# --- I5: a peer stage restarts, and the survivor never recovers -----------------------------------


@MOVES
async def test_the_sender_was_killed(namespace: str, moves: bool) -> None:
    with ends("mooncake", namespace, memory_pool_size=128 << 20) as here:
        async with here.open("receiver", "1") as rx:
            for turn in range(2):
                async with led() as peer:
                    tx = await here.away(peer, "sender", "0")
                    await tx.put(f"next-{turn}", pattern(300_000, turn))
                    await goes_through(rx, f"next-{turn}", turn)
                    await tx.put("big", pattern(BIG, turn))
                    in_flight = asyncio.ensure_future(rx.get("0", "1", "big", timeout=30))
                    parked = asyncio.ensure_future(rx.get("0", "1", f"parked-{turn}", timeout=8))
                    while not (rx.health().in_flight or in_flight.done()):  # noqa: ASYNC110
                        await asyncio.sleep(0)  # nobody tells of a claim
                    await asyncio.sleep(0.001 * turn)
                    peer.kill()
                    await fails_fast(in_flight, time.monotonic())
                    del in_flight
                assert not parked.done()
                if moves:
                    here.move()
                    rx.update_sender_info(HOST, here.port())
                async with led() as successor:
                    tx = await here.away(successor, "sender", "0")
                    for key in (f"parked-{turn}", f"again-{turn}"):
                        await tx.put(key, pattern(300_000, turn))
                    await goes_through(rx, f"again-{turn}", turn)
                    if moves:  # it waits where it has asked, and is told so in the end
                        parked.cancel()
                        await asyncio.wait({parked})
                        await goes_through(rx, f"parked-{turn}", turn)
                    else:
                        delivery = await asyncio.wait_for(parked, RECOVERY)
                        assert (delivery.value == pattern_array(300_000, turn)).all()
                        del delivery
                    del parked
                    await quiet(rx)
                    await tx.close()


async def test_the_receiver_was_killed(namespace: str) -> None:
    with ends("mooncake", namespace, memory_pool_size=128 << 20) as here:
        async with here.open("sender", "0") as tx:
            for turn in range(2):
                async with led() as peer:
                    rx = await here.away(peer, "receiver", "1")
                    await tx.put("0", "1", "first", turn)
                    assert (await rx.get("first", literal(turn))).wrong is None
                    await tx.put("0", "1", f"big-{turn}", pattern_array(BIG, turn))
                    get = asyncio.ensure_future(_lost(rx, f"big-{turn}"))
                    await asyncio.sleep(0.002 * (turn + 1))
                    peer.kill()
                    await get
                began = time.monotonic()
                await quiet(tx, pool_used=None, within=FAST)  # nothing is under way any more
                assert time.monotonic() - began < FAST
                async with led() as successor:
                    rx = await here.away(successor, "receiver", "1")
                    await tx.put("0", "1", "next", pattern_array(300_000, turn))
                    began = time.monotonic()
                    got = await rx.get("next", pattern(300_000, turn), timeout=RECOVERY)
                    assert got.wrong is None
                    assert time.monotonic() - began < RECOVERY
                    await tx.cleanup(f"big-{turn}")
                    await rx.close()
                await quiet(tx)


@MOVES
async def test_the_stage_in_the_middle_was_killed(namespace: str, moves: bool) -> None:
    """It receives and sends; both of its neighbours survive it."""
    with ends("mooncake", namespace, memory_pool_size=128 << 20) as here:
        first = here.open("sender", "0")
        last = here.open("receiver", "2", sender="1")
        async with first as tx, last as rx:
            for turn in range(2):
                async with led() as peer:
                    await _through(here, peer, tx, rx, turn)
                    waiting = asyncio.ensure_future(rx.get("1", "2", "never", timeout=1.0))
                    peer.kill()
                    with pytest.raises(TransferTimeout, match="lost"):
                        await waiting
                if moves:
                    here.move("1")
                    rx.update_sender_info(HOST, here.port("1"))
            async with led() as peer:
                await _through(here, peer, tx, rx, 9)


async def _through(
    here: Ends, peer: PeerProcess, tx: omni_async.Transport, rx: omni_async.Transport, seed: int
) -> None:
    """A payload goes from the first stage to the last one, by way of that process."""
    into = await here.away(peer, "receiver", "1")
    out = await here.away(peer, "sender", "1")
    await tx.put("0", "1", "k", pattern_array(300_000, seed))
    got = await into.get("k", pattern(300_000, seed), timeout=RECOVERY)
    assert got.wrong is None
    await out.put("k", pattern(300_000, seed), edge=("1", "2"))
    delivery = await rx.get("1", "2", "k", timeout=RECOVERY)
    assert (delivery.value == pattern_array(300_000, seed)).all()
    del delivery


async def _lost(rx: RemoteSide, key: str) -> None:
    """A get whose process dies under it, or just after it."""
    with contextlib.suppress(PeerGone):
        await rx.get(key, timeout=30)
