"""Receivers that are told host and port: several senders, senders that moved, ports that are taken.

A backend whose senders are found by name or by key has nothing to show here.
"""

from __future__ import annotations

import asyncio

import pytest

from ...errors import ProtocolError, TransferTimeout, UsageError
from ..chunks import reader, writer
from ..recipes import literal, pattern
from ..rig import HOST, Rig
from ..sides import Side, attempt
from .base import HERE, ONE_LOOP, RECEIVER_HERE, Conformance, runs
from .lifecycle import until_parked
from .peers import AWAY_RECEIVER, AWAY_SENDER

RECOVERY = 3.0
"""Seconds in which a receiver finds a sender that has come back."""


class Addresses(Conformance):
    @runs(*HERE)
    async def test_a_receipt_tells_host_and_port(self, rig: Rig) -> None:
        _addressed(rig)
        tx = await rig.sender()
        receipt = await tx.put("k", literal(1))
        assert receipt.metadata is not None
        assert receipt.metadata["source_host"] == HOST
        assert receipt.metadata["source_port"] == rig.port("0")
        await tx.cleanup("k")

    @runs(*HERE)
    async def test_several_senders_to_one_receiver(self, rig: Rig) -> None:
        """As where more ranks send than receive: each is reached by its address, under one key."""
        _addressed(rig)
        senders = [await rig.sender(rank=rank) for rank in range(4)]
        rx = await rig.receiver()
        gets = [
            asyncio.ensure_future(rx.get("k", pattern(size, rank), metadata=rig.at("0", rank)))
            for rank, size in enumerate((10, 50_000, 700, 300_000))
        ]
        sinks = [
            await reader(rx, "s", metadata=rig.at("0", rank), name=f"of rank {rank}")
            for rank in range(4)
        ]
        await until_parked(rx, 4)
        for rank, size in reversed(list(enumerate((10, 50_000, 700, 300_000)))):
            await senders[rank].put("k", pattern(size, rank))
            await (await writer(senders[rank], "s")).send_all([literal(rank), pattern(size, rank)])
        assert [got.wrong for got in await asyncio.gather(*gets)] == [None] * 4
        for rank, size in enumerate((10, 50_000, 700, 300_000)):
            story = await sinks[rank].read_all([literal(rank), pattern(size, rank)])
            assert (story.count, story.wrong, story.error) == (2, [], None)
        await rig.quiet()

    @runs(*HERE)
    async def test_a_sender_that_comes_back_elsewhere(self, rig: Rig) -> None:
        _addressed(rig)
        tx, rx = await rig.pair()
        await tx.put("first", literal(1))
        assert (await rx.get("first", literal(1))).wrong is None
        await tx.close()
        tx = await _moved(rig)
        receipt = await tx.put("second", pattern(50_000))
        assert (await rx.get("second", pattern(50_000), metadata=receipt.metadata)).wrong is None
        await rx.update_sender_info(HOST, rig.port("0"))
        await tx.put("third", pattern(50_000))
        assert (await rx.get("third", pattern(50_000))).wrong is None
        await rig.quiet(tx, rx)

    @pytest.mark.parametrize("moves", [False, True], ids=["same port", "other port"])
    @runs(*AWAY_SENDER, own_peer=True)
    async def test_a_killed_sender_comes_back(self, rig: Rig, moves: bool) -> None:
        """What was parked goes on waiting where it asked; the receiver is never opened anew."""
        _addressed(rig)
        tx, rx = await rig.pair()
        await tx.put("first", pattern(300_000, 1))
        assert (await rx.get("first", pattern(300_000, 1))).wrong is None
        parked = asyncio.ensure_future(attempt(rx.get("k", pattern(300_000, 2), timeout=3)))
        await until_parked(tx, 1)
        rig.peer.kill()
        if moves:
            rig.move("0")
        loop = asyncio.get_running_loop()
        async with rig.opening("sender", "0") as successor:
            began = loop.time()
            if moves:
                await rx.update_sender_info(HOST, rig.port("0"))
            for key in ("next", "k"):
                await successor.put("0", "1", key, pattern(300_000, 2).make())
            got = await rx.get("next", pattern(300_000, 2), timeout=RECOVERY)
            assert got.wrong is None
            assert loop.time() - began < RECOVERY
            if moves:
                assert (await rx.get("k", pattern(300_000, 2), timeout=RECOVERY)).wrong is None
                error = await parked
                assert isinstance(error, TransferTimeout), error
                assert "lost" in str(error)
            else:
                assert (await parked).wrong is None
            await rig.quiet(rx)

    @runs(*AWAY_RECEIVER, own_peer=True)
    async def test_a_killed_receiver_comes_back(self, rig: Rig) -> None:
        _addressed(rig)
        tx, rx = await rig.pair()
        await tx.put("first", pattern(300_000, 1))
        assert (await rx.get("first", pattern(300_000, 1))).wrong is None
        await rig.quiet(tx)  # it knows of the delivery
        rig.peer.kill()
        async with rig.opening("receiver", "1") as successor:
            await tx.put("k", pattern(300_000, 2))
            delivery = await successor.get("0", "1", "k", timeout=RECOVERY)
            assert (delivery.value == pattern(300_000, 2).make()).all()
            del delivery
            await rig.quiet(tx)

    @runs(*ONE_LOOP)
    async def test_a_port_that_is_taken(self, rig: Rig) -> None:
        """Said when it is opened, with the port; who listens there goes on."""
        _addressed(rig)
        tx, rx = await rig.pair()
        error = await attempt(rig.sender("5", zmq_port=rig.port("0")))
        assert isinstance(error, UsageError), error
        assert str(rig.port("0")) in str(error)
        await tx.put("k", literal(1))
        assert (await rx.get("k", literal(1))).wrong is None

    @runs(*HERE)
    async def test_a_receiver_of_another_pipeline_is_refused(self, rig: Rig) -> None:
        _addressed(rig)
        tx, rx = await rig.pair()
        stranger = await rig.receiver(
            namespace=f"{rig.namespace}-other", sender_zmq_port=rig.port("0")
        )
        await tx.put("k", pattern(40_000))
        error = await attempt(stranger.get("k", timeout=10))
        assert isinstance(error, ProtocolError), error
        for namespace in (rig.namespace, f"{rig.namespace}-other"):
            assert repr(namespace) in str(error)
        assert (await rx.get("k", pattern(40_000))).wrong is None

    @runs(*RECEIVER_HERE)
    async def test_where_nobody_listens_is_told(self, rig: Rig) -> None:
        _addressed(rig)
        rx = await rig.receiver()
        for timeout in (0, 0.1):
            error = await attempt(rx.get("k", timeout=timeout))
            assert str(rig.port("0")) in str(error)
        await rig.quiet(rx)


def _addressed(rig: Rig) -> None:
    if not rig.addressed:
        pytest.skip("senders are found by name or by key here")


async def _moved(rig: Rig) -> Side:
    """The sender, at another port."""
    before = rig.port("0")
    assert rig.move("0") != before
    return await rig.sender()
