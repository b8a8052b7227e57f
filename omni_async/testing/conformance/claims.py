"""Who may have a payload, how often, and for how long it is kept."""

from __future__ import annotations

import asyncio

import pytest

from ...errors import KeyExists, KeyNotFound
from ..recipes import literal, pattern, tree
from ..rig import Rig
from ..sides import Side, attempt
from .base import HERE, Conformance, runs


class Claims(Conformance):
    @runs(*HERE)
    async def test_put_again_replaces_what_nobody_has_claimed(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for nbytes in (100, 200_000):
            for seed in range(5):
                await tx.put("k", pattern(nbytes, seed))
            assert (await rx.get("k", pattern(nbytes, 4))).wrong is None
            assert isinstance(await attempt(rx.get("k", timeout=0)), KeyNotFound)
        await rig.quiet()

    @runs(*HERE)
    async def test_put_again_after_a_claim_is_refused_until_the_last_delivery(
        self, rig: Rig
    ) -> None:
        tx, rx = await rig.pair()
        if not (await tx.capabilities()).exclusive:
            pytest.skip("this backend does not know who reads")
        await tx.put("k", pattern(50_000, 1), consumers=2)
        assert (await rx.get("k", pattern(50_000, 1))).wrong is None
        error = await attempt(tx.put("k", pattern(50_000, 2)))
        assert isinstance(error, KeyExists)
        assert (error.key, error.edge) == ("k", ("0", "1"))
        assert (await rx.get("k", pattern(50_000, 1))).wrong is None
        await rig.quiet()
        await tx.put("k", pattern(50_000, 2))
        assert (await rx.get("k", pattern(50_000, 2))).wrong is None

    @runs(*HERE)
    async def test_a_key_is_free_again_while_its_payload_is_still_read(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("k", pattern(50_000, 1))
        await rx.get("k", keep="first")
        for _ in range(100):
            outcome = await attempt(tx.put("k", pattern(50_000, 2)))
            if not isinstance(outcome, KeyExists):
                break
            await asyncio.sleep(0.01)  # the word of the delivery is on its way
        assert (await rx.get("k", pattern(50_000, 2))).wrong is None
        assert await rx.look("first", pattern(50_000, 1)) is None

    @runs(*HERE)
    async def test_one_consumer_means_one_delivery(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        if not (await tx.capabilities()).exclusive:
            pytest.skip("reading is not exclusive here")
        gets = [
            asyncio.ensure_future(attempt(rx.get("k", literal(7), timeout=0.4))) for _ in range(5)
        ]
        await tx.put("k", literal(7))
        outcomes = await asyncio.gather(*gets)
        assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 1

    @pytest.mark.parametrize("nbytes", [100, 300_000])
    @runs(*HERE)
    async def test_any_n_deliveries(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair()
        if not (await tx.capabilities()).exclusive:
            pytest.skip("kept until cleanup here")
        other = await rig.receiver()
        await tx.put("k", tree(nbytes, 3), consumers=4)
        gets = [receiver.get("k", tree(nbytes, 3)) for receiver in (rx, other, rx, other)]
        assert [got.wrong for got in await asyncio.gather(*gets)] == [None] * 4
        await rig.quiet(tx)
        assert isinstance(await attempt(rx.get("k", timeout=0)), KeyNotFound)

    @runs(*HERE)
    async def test_several_receivers_get_copies(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        other = await rig.receiver()
        await tx.put("k", pattern(300_000, 1), consumers=2)
        await rx.get("k", keep="mine")
        await other.get("k", keep="theirs")
        await rx.write("mine", 0)
        assert await other.look("theirs", pattern(300_000, 1)) is None
        await _over(rig, tx)
        await rig.quiet(tx)  # copies hold nothing

    @runs(*HERE)
    async def test_several_receivers_may_share_when_they_ask(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("k", pattern(300_000, 1), consumers=2)
        for keep in ("first", "second"):
            got = await rx.get("k", pattern(300_000, 1), copy=False, keep=keep)
            assert got.wrong is None
        await rx.release("first")
        await rx.forget("first")
        assert await rx.look("second", pattern(300_000, 1)) is None
        await rx.forget("second")
        await _over(rig, tx)
        await rig.quiet()

    @runs(*HERE)
    async def test_what_nobody_fetches_expires(self, rig: Rig) -> None:
        tx, rx = await rig.pair(buffer_ttl_seconds=0.3)
        await tx.put("k", pattern(100_000))
        await tx.put("small", literal(1))
        assert rig.stored or (await tx.health()).pool_used >= 100_000
        await rig.quiet(tx, within=3.0)
        for key in ("k", "small"):
            for timeout in (0, 1):
                error = await attempt(rx.get(key, timeout=timeout))
                assert isinstance(error, KeyNotFound), error
                assert error.expired
                assert "expired" in str(error)
        await tx.put("k", literal("new"))
        assert (await rx.get("k", literal("new"))).wrong is None

    @runs(*HERE)
    async def test_what_is_held_does_not_expire(self, rig: Rig) -> None:
        tx, rx = await rig.pair(buffer_ttl_seconds=0.2)
        await tx.put("k", pattern(200_000, 1))
        await rx.get("k", keep="held")
        await asyncio.sleep(0.5)
        await tx.put("other", pattern(200_000, 2))
        assert await rx.look("held", pattern(200_000, 1)) is None
        assert (await rx.get("other", pattern(200_000, 2))).wrong is None


async def _over(rig: Rig, tx: Side) -> None:
    """What is for several receivers a store keeps until it is cleaned up."""
    if rig.stored:
        await tx.cleanup("k")
