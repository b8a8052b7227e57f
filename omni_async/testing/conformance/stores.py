"""What a transport over a store promises in place of what only two ends that know of each other can."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ...errors import KeyExists, KeyNotFound
from ..recipes import literal, pattern
from ..rig import Rig, Way
from ..sides import LocalSide, Side, attempt
from .base import APART, HERE, RECEIVER_HERE, Conformance, only_stored, runs
from .peers import AWAY_SENDER


class Stores(Conformance):
    @runs(*HERE)
    async def test_what_is_for_several_is_kept_until_it_is_cleaned_up(self, rig: Rig) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        other = await rig.receiver()
        for nbytes in (100, 300_000):
            await tx.put("k", pattern(nbytes, 1), consumers=2, request_id="r")
            for side in (rx, other, rx, other):  # more often than was said: nobody counts
                assert (await side.get("k", pattern(nbytes, 1))).wrong is None
            assert await tx.cleanup("r") == 1
            await self.gone(rx, "k")
        await rig.quiet()

    @pytest.mark.parametrize("how", ["leave", "close", "abort"])
    @runs(*HERE)
    async def test_what_nobody_has_fetched_outlives_its_sender(self, rig: Rig, how: str) -> None:
        only_stored(rig)
        tx, rx = await rig.pair(linger=0.05)
        await tx.put("small", literal("still here"))
        await tx.put("large", pattern(300_000, 1))
        await asyncio.wait_for(getattr(tx, how)(), 5)
        for key, recipe in (("small", literal("still here")), ("large", pattern(300_000, 1))):
            assert (await rx.get(key, recipe, timeout=5)).wrong is None
            await self._absent(rx, key)

    @runs(*AWAY_SENDER, own_peer=True)
    async def test_what_a_killed_sender_has_put_is_there(self, rig: Rig) -> None:
        only_stored(rig)
        if not self.survives:
            pytest.skip("here it lies in memory of its sender")
        tx, rx = await rig.pair()
        await tx.put("k", pattern(300_000, 1))
        rig.peer.kill()
        assert (await rx.get("k", pattern(300_000, 1), timeout=5)).wrong is None
        await self._absent(rx, "k")

    @runs(*HERE)
    async def test_ranks_and_replicas_never_mix(self, rig: Rig) -> None:
        only_stored(rig)
        ends: list[dict[str, Any]] = [{}, {"rank": 1}, {"replica": 1}, {"rank": 1, "replica": 1}]
        for number, end in enumerate(ends):
            await (await rig.sender(**end)).put("k", literal(number))
        for number, end in reversed(list(enumerate(ends))):
            rx = await rig.receiver(**end)
            assert (await rx.get("k", literal(number))).wrong is None
            await self._absent(rx, "k")

    @runs(*RECEIVER_HERE)
    async def test_a_receiver_is_told_of_another_rank(self, rig: Rig) -> None:
        only_stored(rig)
        near, far, rx = (
            await rig.sender(),
            await rig.sender(rank=3, replica=1),
            await rig.receiver(),
        )
        assert isinstance(rx, LocalSide)
        await near.put("k", literal("near"))
        await far.put("k", literal("far"))
        rx.transport.expect_sender("0", 3, 1)
        assert (await rx.get("k", literal("far"))).wrong is None
        rx.transport.expect_sender("0", 0, 0)
        assert (await rx.get("k", literal("near"))).wrong is None

    @runs(*HERE)
    async def test_where_its_sender_is_makes_no_difference(self, rig: Rig) -> None:
        """The key is the meeting point: addresses are taken and not needed."""
        only_stored(rig)
        tx, rx = await rig.pair()
        receipt = await tx.put("k", pattern(50_000))
        assert receipt.metadata is None
        await rx.update_sender_info("127.0.0.1", 9)
        metadata = {"source_host": "127.0.0.1", "source_port": 9}
        assert (await rx.get("k", pattern(50_000), metadata=metadata)).wrong is None

    @runs(*APART)
    async def test_two_senders_of_one_name_replace_each_others_payloads(self, rig: Rig) -> None:
        """In two processes nobody sees that there are two."""
        only_stored(rig)
        tx, rx = await rig.pair()
        if rig.way is Way.SENDER_AWAY:
            opening = rig.opening("sender", "0")
            other: Side = LocalSide(await opening.__aenter__())
        else:
            opening, other = None, await rig.away("sender", "0")
        await tx.put("k", pattern(40_000, 1))
        await other.put("k", pattern(90_000, 2))
        await tx.put("mine", literal(1))
        assert (await rx.get("k", pattern(90_000, 2))).wrong is None
        await self._absent(rx, "k")
        assert (await rx.get("mine", literal(1))).wrong is None
        if opening is not None:
            await opening.__aexit__(None, None, None)

    @runs(*HERE)
    async def test_what_somebody_has_read_is_replaced_or_refused(self, rig: Rig) -> None:
        """Who may read it again never gets a mixture, and the sender knows which one is there."""
        only_stored(rig)
        tx, rx = await rig.pair()
        await tx.put("k", pattern(200_000, 1), consumers=2)
        assert (await rx.get("k", pattern(200_000, 1))).wrong is None
        outcome = await attempt(tx.put("k", pattern(200_000, 2), consumers=2))
        there = 2
        if isinstance(outcome, Exception):
            assert isinstance(outcome, KeyExists), outcome
            assert (outcome.key, outcome.edge) == ("k", ("0", "1"))
            there = 1
        assert (await rx.get("k", pattern(200_000, there))).wrong is None
        await tx.cleanup("k")

    @runs(*HERE)
    async def test_a_sender_holds_nothing_of_what_was_put(self, rig: Rig) -> None:
        """Its pool is a place on the way; more than its limit can be unread."""
        only_stored(rig)
        tx, rx = await rig.pair(memory_pool_size=1 << 20)
        for number in range(5):
            await tx.put(f"k{number}", pattern(700_000, number), timeout=5)
            await rig.quiet(tx, pool_used=None)
            assert (await tx.health()).pool_used == 0
        for number in range(5):
            assert (await rx.get(f"k{number}", pattern(700_000, number))).wrong is None

    @runs(*HERE)
    async def test_draining_asks(self, rig: Rig) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        for number in range(30):
            await tx.put(f"k{number}", pattern(number * 100, number))
        for number in range(29):
            assert (await rx.get(f"k{number}", pattern(number * 100, number))).wrong is None
        assert await tx.drain(1.0) == 1
        assert (await rx.get("k29", pattern(2900, 29))).wrong is None
        assert await tx.drain(5.0) == 0
        assert await tx.cleanup("k3") == 0

    @runs(*HERE)
    async def test_clean_up_counts_what_is_still_there(self, rig: Rig) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        for number in range(4):
            await tx.put(f"k{number}", literal(number), request_id="r")
        for number in range(3):
            assert (await rx.get(f"k{number}", literal(number))).wrong is None
        await asyncio.sleep(0.1)  # what was handed over is deleted right behind
        assert await tx.cleanup("r") == 1
        assert await tx.cleanup("r") == 0
        await self.gone(rx, "k3")

    @runs(*HERE)
    async def test_word_that_something_has_expired_goes_with_its_sender(self, rig: Rig) -> None:
        only_stored(rig)
        tx, rx = await rig.pair(buffer_ttl_seconds=0.2)
        await tx.put("k", pattern(100_000))
        assert await tx.drain(5) == 0  # nobody fetches it, and it is gone
        late = await rig.receiver()
        for side in (rx, late):
            error = await attempt(side.get("k", timeout=0))
            assert isinstance(error, KeyNotFound), error
            assert error.expired
        await tx.close()
        error = await attempt(rx.get("k", timeout=0))
        assert isinstance(error, KeyNotFound)
        assert not error.expired

    @runs(*HERE)
    async def test_sizes_that_change_from_one_payload_to_the_next(self, rig: Rig) -> None:
        """A receiver guesses how much room the next one needs."""
        only_stored(rig)
        tx, rx = await rig.pair(memory_pool_size=8 << 20)
        sizes = [10, 65_000, 66_000, 5 << 20, 5 << 20, 100, 3 << 20, 300_000, 0, 6 << 20]
        for seed, nbytes in enumerate(sizes):
            await tx.put("k", pattern(nbytes, seed))
            assert (await rx.get("k", pattern(nbytes, seed))).wrong is None
        await rig.quiet()

    async def _absent(self, rx: Side, key: str) -> None:
        error = await attempt(rx.get(key, timeout=0))
        assert isinstance(error, KeyNotFound), error
