"""From an offer to a value: by mapping, by reading, or by being written to.

In: an Offer. Out: a Delivery over views of pool memory, or over a copy.
Never: trusts an offer's lengths; consumes a payload before its value stands.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .._aio.copying import INLINE_COPY
from ..codec import decode
from ..errors import PeerLost, ProtocolError
from ..model import ALIGNMENT, TransferKey, Verb, aligned, packed
from ..pool import Hold, ManagedBuffer
from ..rendezvous.messages import Offer
from .delivery import Delivery
from .landing import Wait, land
from .link import Held, Link

Array = np.ndarray[Any, np.dtype[np.uint8]]


async def take(
    link: Link,
    op: int,
    offer: Offer,
    where: TransferKey,
    wait: Wait,
    deadline: float | None,
    *,
    raw: bool,
    copy: bool | None,
    device: Any,
) -> Delivery:
    """Take what was offered.

    Cancellation: safe; the caller gives the operation up.
    """
    wiring = link.wiring
    if link.core.phase(op) is None:  # the line ended in the turn of the loop that brought the offer
        raise _lost(link, where)
    offsets = checked_offer(offer)
    if not offer.places:
        places: list[Array] = []
    elif wiring.engine.verb is Verb.MAP:
        places = _mapped(link, op, offer)
    else:
        places = await land(link, op, offer, wait, deadline)
    mapped = bool(places) and wiring.engine.verb is Verb.MAP
    frames = _frames(offer, offsets, places)
    copying = offer.shared if copy is None else copy
    independent = copying and bool(places)
    if raw:
        value: Any = _raw(offer, frames, places, copying)
        independent = independent or not mapped or not _shares(value, places)
    elif (independent and offer.nbytes > INLINE_COPY) or device is not None:
        value = await wiring.executor.finish(_decode, frames, copying, offer.shared, device)
        independent = copying
    else:
        value = decode(frames[0].data, frames[1:], copy=copying, writable=not offer.shared)
    if not link.core.consume(op, holding=mapped and not independent):
        raise _lost(link, where)
    if _mark(link, offer):
        link.pump_soon()
    else:
        link.core.urgent = True
        link.pump()
    return Delivery(value, offer.nbytes, where.key, None if independent else places)


def _lost(link: Link, where: TransferKey) -> PeerLost:
    return PeerLost(
        f"get of {where.key!r} on {where.edge}: the sender was lost while the payload was taken; "
        f"{link.describe()}",
        **link.wiring.where(where, link.peer),
    )


def _mark(link: Link, offer: Offer) -> bool:
    """Leave word in the sender's memory that this payload is consumed, where that is possible.

    It costs nothing, and it is there even if this process dies before it says so.
    """
    place = offer.mark
    if place is None or link.wiring.engine.verb is not Verb.MAP:
        return False
    region = link.known.get(place.region)
    if region is None or not 0 <= place.offset < region.nbytes:
        return False
    ctypes.memset(region.address + place.offset, 1, 1)
    return True


def checked_offer(offer: Offer) -> list[int]:
    """Offsets of the packed frames.

    Raises:
        ProtocolError: the offer's own numbers contradict each other.
    """
    sizes, places = offer.sizes, offer.places
    if offer.apart:
        away = set(offer.apart)
        here = [size for i, size in enumerate(sizes) if i not in away]
        offsets, total = packed(here)
        first = 0 if offer.inline is not None else 1
        right = (
            len(away) == len(offer.apart)
            and 0 not in away
            and len(here) + len(away) == len(sizes)
            and len(places) == first + len(offer.apart)
            and all(
                place.nbytes == sizes[i]
                for i, place in zip(offer.apart, places[first:], strict=True)
            )
        )
    else:
        offsets, total = packed(sizes)
        right = bool(sizes) and len(places) == (offer.inline is None)
        here = sizes
    if right:
        held = places[0].nbytes if offer.inline is None else len(offer.inline)
        right = held >= (total if len(here) > 1 else here[0]) and min(sizes) >= 0
    if not right:
        raise ProtocolError(
            f"an offer contradicts itself: sizes {sizes}, places {places}, apart {offer.apart}"
        )
    return offsets


def _mapped(link: Link, op: int, offer: Offer) -> list[Array]:
    held = Held(link, op, len(offer.places), offer.nbytes)
    arrays = []
    for place in offer.places:
        region = link.known.get(place.region)
        if region is None or place.offset < 0 or place.offset + place.nbytes > region.nbytes:
            raise ProtocolError(f"an offer names {place}, which is in no region that was announced")
        owner = (region.handle, link.lifeline)
        hold = Hold(
            region.address + place.offset, place.nbytes, held.let_go, link.wiring.drops, owner
        )
        arrays.append(np.asarray(hold))
    return arrays


def _frames(offer: Offer, offsets: list[int], places: list[Array]) -> list[Array]:
    """One array for each frame, in order."""
    sizes = offer.sizes
    if offer.inline is None:
        block, rest = places[0], places[1:]
    else:
        rest = places
        block = np.frombuffer(offer.inline, np.uint8)
        if len(sizes) > 1 + len(rest):
            block = aligned_copy(block)
    if not offer.apart:
        return [block[at : at + size] for at, size in zip(offsets, sizes, strict=True)]
    frames: list[Array] = []
    away = dict(zip(offer.apart, rest, strict=True))
    here = iter(offsets)
    for number, size in enumerate(sizes):
        if number in away:
            frames.append(away[number])
        else:
            at = next(here)
            frames.append(block[at : at + size])
    return frames


def aligned_copy(data: Array) -> Array:
    """Writable memory with the same bytes, on a 64-byte boundary."""
    out = _room(len(data))
    out[:] = data
    return out


def _room(nbytes: int) -> Array:
    """Aligned private memory. Small pieces share a block, which lives as long as any of them."""
    global _block, _block_end
    if nbytes > _BLOCK // 4:
        return _aligned(nbytes)
    start, end = _block_end, _block_end + aligned(nbytes)
    if end > len(_block):
        _block, start, end = _aligned(_BLOCK), 0, aligned(nbytes)
    _block_end = end
    return _block[start : start + nbytes]


def _aligned(nbytes: int) -> Array:
    spare = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -int(spare.__array_interface__["data"][0]) % ALIGNMENT
    return spare[skip : skip + nbytes]


_BLOCK = 64 << 10
_block = _aligned(0)
_block_end = 0


def _raw(offer: Offer, frames: list[Array], places: list[Array], copying: bool) -> ManagedBuffer:
    """The payload's bytes: of one buffer just these, else header and buffers one after another."""
    if offer.fast:
        data = frames[1]
    elif len(frames) == 1:
        data = frames[0]
    else:
        data = np.concatenate(frames)
        copying = False
    if copying or (not places and not data.flags.writeable):
        data = aligned_copy(data)
    return ManagedBuffer(data)


def _shares(value: ManagedBuffer, places: list[Array]) -> bool:
    return any(np.may_share_memory(value.array, place) for place in places)


def _decode(frames: list[Array], copying: bool, shared: bool, device: Any) -> Any:
    return decode(frames[0].data, frames[1:], copy=copying, writable=not shared, device=device)
