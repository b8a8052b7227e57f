"""Processes that stop, die and come back."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from ...errors import EngineFault, PeerLost, TransferTimeout, UsageError
from ..recipes import literal, pattern, pattern_array
from ..rig import Rig, Way
from ..sides import LocalSide, attempt
from .base import APART, Conformance, only, runs
from .lifecycle import until_parked, until_waited

AWAY_SENDER = (Way.SENDER_AWAY,)
AWAY_RECEIVER = (Way.RECEIVER_AWAY,)


class Peers(Conformance):
    @runs(*APART)
    async def test_a_second_sender_in_another_process_is_refused_by_name(self, rig: Rig) -> None:
        only(
            rig, "notifies", "a store does not know its senders, so nobody sees that there are two"
        )
        await rig.sender()
        opening = rig.opening("sender", "0")
        if rig.way is Way.SENDER_AWAY:
            with pytest.raises(UsageError, match=str(rig.peer.pid)):
                await opening.__aenter__()
        else:
            with pytest.raises(UsageError):
                await rig.away("sender", "0")

    @runs(*AWAY_SENDER, own_peer=True)
    async def test_a_killed_sender_is_waited_for(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("first", literal(1))
        assert (await rx.get("first", literal(1))).wrong is None
        waiting = asyncio.ensure_future(rx.get("k", literal(2), timeout=10))
        await until_waited(rig, tx, rx, 1)
        rig.peer.kill()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        async with rig.opening("sender", "0") as successor:
            await successor.put("0", "1", "k", 2)
            assert (await waiting).wrong is None

    @runs(*AWAY_SENDER, own_peer=True)
    async def test_the_time_limit_after_a_loss_tells_of_it(self, rig: Rig) -> None:
        only(rig, "notifies", "a store tells nobody that a sender was lost")
        tx, rx = await rig.pair()
        waiting = asyncio.ensure_future(attempt(rx.get("k", timeout=0.5)))
        await until_parked(tx, 1)
        rig.peer.kill()
        error = await waiting
        assert isinstance(error, TransferTimeout)
        assert "lost" in str(error)

    @runs(*AWAY_SENDER, own_peer=True)
    async def test_views_of_a_killed_senders_payloads_stay(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(rx, LocalSide)
        await tx.put("k", pattern(300_000, 1))
        value = (await rx.transport.get("0", "1", "k")).value
        rig.peer.kill()
        await asyncio.sleep(0.05)
        assert (value == pattern_array(300_000, 1)).all()
        value[:] = 0
        del value
        await rig.quiet(rx)

    @runs(*AWAY_RECEIVER, own_peer=True)
    async def test_a_killed_receiver_gives_everything_back(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("held", pattern(300_000))
        await tx.put("shared", pattern(300_000), consumers=2)
        await rx.get("held", keep="held")
        await rx.get("shared", copy=False, keep="shared")
        waiting = asyncio.ensure_future(rx.get("parked", timeout=None))
        await until_waited(rig, tx, rx, 1)
        rig.peer.kill()
        waiting.cancel()
        await asyncio.wait({waiting})
        await rig.quiet(tx, pool_used=None)
        async with rig.opening("receiver", "1") as successor:
            delivery = await successor.get("0", "1", "shared", timeout=5)
            assert (delivery.value == pattern_array(300_000)).all()
            del delivery
            if rig.stored:  # kept until then
                await tx.cleanup("shared")
            await rig.quiet(tx)

    @runs(*AWAY_RECEIVER)
    async def test_receivers_of_two_processes_contest_a_key(self, rig: Rig) -> None:
        tx, away = await rig.pair()
        if not (await tx.capabilities()).exclusive:
            pytest.skip("reading is not exclusive here")
        async with rig.opening("receiver", "1") as opened:
            near = LocalSide(opened)
            for turn in range(8):
                recipe = pattern(2000 * turn, turn)
                gets = [
                    asyncio.ensure_future(attempt(side.get(f"k{turn}", recipe, timeout=0.1)))
                    for side in (near, away)
                ]
                await tx.put(f"k{turn}", recipe)
                outcomes = await asyncio.gather(*gets)
                good = [found for found in outcomes if not isinstance(found, Exception)]
                assert [found.wrong for found in good] == [None]

    @runs(*AWAY_SENDER)
    async def test_senders_of_two_processes_put_one_key(self, rig: Rig) -> None:
        """Two ranks, one key: whoever is asked, each payload is whole and its sender's own."""
        away, rx = await rig.pair()
        async with rig.opening("sender", "0", rank=1) as opened:
            near = LocalSide(opened)
            for turn in range(20):
                recipes = {away: pattern(30_000, turn), near: pattern(30_000, 1000 + turn)}
                receipts = [await side.put("k", recipe) for side, recipe in recipes.items()]
                for receipt, recipe in zip(receipts, recipes.values(), strict=True):
                    if receipt.metadata is None:
                        pytest.skip("stores have one place for a key")
                    got = await rx.get("k", recipe, metadata=receipt.metadata)
                    assert got.wrong is None

    @runs(*AWAY_SENDER)
    async def test_a_stopped_sender_is_named(self, rig: Rig) -> None:
        only(
            rig,
            "notifies",
            "whose sender is slow a store does not tell; its own address is in the error",
        )
        tx, rx = await rig.pair()
        await tx.put("first", literal(1))
        assert (await rx.get("first", literal(1))).wrong is None
        rig.peer.stop()
        try:
            error = await attempt(rx.get("k", timeout=0.3))
            assert isinstance(error, TransferTimeout)
            assert str(rig.peer.pid) in str(error)
            assert error.peer
        finally:
            rig.peer.resume()
        await tx.put("k", pattern(30_000))
        assert (await rx.get("k", pattern(30_000), timeout=10)).wrong is None

    @runs(*AWAY_RECEIVER)
    async def test_a_stopped_receiver_blocks_nobody(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("first", literal(1))
        assert (await rx.get("first", literal(1))).wrong is None
        rig.peer.stop()
        try:
            with anyio.fail_after(5):
                for number in range(20):
                    await tx.put(f"k{number}", pattern(20_000, number))
        finally:
            rig.peer.resume()
        for number in range(20):
            assert (await rx.get(f"k{number}", pattern(20_000, number))).wrong is None

    @runs(*AWAY_SENDER, own_peer=True)
    async def test_what_was_offered_is_lost_with_its_sender(self, rig: Rig) -> None:
        """A claimed get ends by ``PeerLost``, or had its value; it never hangs."""
        tx, rx = await rig.pair()
        keys = {f"k{number}": pattern(200_000, number) for number in range(20)}
        await tx.put_many(keys)
        gets = [asyncio.ensure_future(attempt(rx.get(k, r, timeout=1))) for k, r in keys.items()]
        await asyncio.sleep(0)
        rig.peer.kill()
        for outcome in await asyncio.gather(*gets):
            # Where the sender's own memory was part of a store, that says so.
            kinds = (
                (PeerLost, TransferTimeout, EngineFault)
                if rig.stored
                else (PeerLost, TransferTimeout)
            )
            good = isinstance(outcome, kinds) or outcome.wrong is None
            assert good, outcome
