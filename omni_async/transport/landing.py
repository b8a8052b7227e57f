"""Landing slots: where WRITE and READ engines put a payload on the receiver's side.

In: an Offer. Out: arrays over slots of the own pool, filled.
Never: frees a slot before the engine, here or at the sender, has ended with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from ..errors import ProtocolError
from ..model import Move, Verb, packed
from ..pool import Hold, Lease
from ..rendezvous.messages import Offer, PlaceWord
from .link import Link
from .on_device import lift
from .waiting import Waiting


async def land(waiting: Waiting[Link], offer: Offer) -> list[Any]:
    """Slots of our own with the payload in them, as arrays or as what stands for one on a device.

    Cancellation: safe; slots under an operation stay quarantined until it has ended.
    """
    link, op = waiting.link, waiting.op
    wiring = link.wiring
    # One slot for all places: two gets that each had one of two slots would wait for each other.
    offsets, total = packed([place.nbytes for place in offer.places])
    lease = await wiring.pool.lease(total, deadline=waiting.deadline)
    link.land(op, lease)
    if wiring.engine.verb is Verb.WRITE:
        answer = _pull(link, op, lease, offsets, offer)
    else:
        answer = link.read(op, _moves(link, lease, offsets, offer))
    await waiting.answer(answer)
    if wiring.engine.verb is Verb.READ:
        confirmed = link.confirm(op)
        if confirmed is not None:
            await waiting.answer(confirmed)
    link.landed(op)
    slot: Any
    if wiring.on_device:
        head = offer.sizes[0] if offer.inline is None else 0
        slot = await lift(wiring, lease, total, head)
    else:
        slot = np.asarray(Hold(lease.address, total, lease.drop, wiring.drops, lease.keep))
    return [
        slot[offset : offset + place.nbytes]
        for offset, place in zip(offsets, offer.places, strict=True)
    ]


def _pull(
    link: Link, op: int, lease: Lease, offsets: list[int], offer: Offer
) -> asyncio.Future[Any]:
    """Tell the sender where to write; the answer is TRANS_DONE or TRANS_ERROR."""
    region = lease.segment.region.id
    places = [
        PlaceWord(region, lease.offset + offset, place.nbytes, lease.generation)
        for offset, place in zip(offsets, offer.places, strict=True)
    ]
    answer = link.expect(op)
    link.core.pull(op, places)
    link.pump()
    return answer


def _moves(link: Link, lease: Lease, offsets: list[int], offer: Offer) -> list[Move]:
    """What to read, from where, once the sender's numbers have been checked."""
    moves = []
    for offset, place in zip(offsets, offer.places, strict=True):
        region = link.known.get(place.region)
        if region is None or place.offset < 0 or place.offset + place.nbytes > region.nbytes:
            raise ProtocolError(f"an offer names {place}, which is in no region that was announced")
        moves.append(Move(lease.address + offset, place.region, place.offset, place.nbytes))
    return moves
