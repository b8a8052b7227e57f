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
from ..errors import ProtocolError
from ..model import Verb, aligned, packed
from ..pool import Hold, ManagedBuffer
from ..rendezvous.messages import Offer
from .delivery import Delivery
from .holding import Held
from .landing import land
from .link import Link
from .on_device import fetched
from .room import Array, Room
from .waiting import Waiting

_MEANWHILE = "was lost while the payload was taken"


async def take(
    waiting: Waiting[Link], offer: Offer, *, raw: bool, copy: bool | None, device: Any
) -> Delivery:
    """Take what was offered.

    Cancellation: safe; the caller gives the operation up.
    """
    link, op = waiting.link, waiting.op
    core, wiring = link.core, link.wiring
    if core.phase(op) is None:  # the line ended in the turn of the loop that brought the offer
        raise waiting.lost(_MEANWHILE)
    offsets = checked_offer(offer)
    places: list[Array] = []
    mapped = False
    if offer.places:
        mapped = wiring.engine.verb is Verb.MAP
        places = _mapped(link, op, offer) if mapped else await land(waiting, offer)
    header, buffers = frames_of(link.room, offer, offsets, places)
    copying = offer.shared if copy is None else copy
    independent = (copying or wiring.on_device) and bool(places)
    if wiring.on_device and device is None:
        device = wiring.engine.device  # also for what was small enough to come inside a word
    value: Any
    if raw:
        if wiring.on_device:
            buffers = await wiring.executor.finish(fetched, buffers)
        joining = bool(buffers) and not offer.fast
        if (joining or copying) and offer.nbytes > INLINE_COPY:
            value = await wiring.executor.finish(
                raw_bytes, Room(), offer.fast, header, buffers, places, copying
            )
        else:
            value = raw_bytes(link.room, offer.fast, header, buffers, places, copying)
        independent = independent or not mapped or not _shares(value, places)
    elif device is not None or (independent and offer.nbytes > INLINE_COPY):
        value = await wiring.executor.finish(
            _decode, header, buffers, copying, offer.shared, device
        )
        independent = copying or wiring.on_device
    else:
        value = decode(header, buffers, copy=copying, writable=not offer.shared)
    if not core.consume(op, holding=mapped and not independent):
        raise waiting.lost(_MEANWHILE)
    if _mark(link, offer):
        link.pump()
    else:  # the sender waits for the word; the caller need not wait until it is written
        core.urgent = True
        wiring.loop.call_soon(link.pump)
    return Delivery(value, offer.nbytes, waiting.where.key, None if independent else places)


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


def frames_of(
    room: Room, offer: Offer, offsets: list[int], places: list[Array]
) -> tuple[memoryview, list[Array]]:
    """The header, and one array for each frame behind it, in order."""
    sizes = offer.sizes
    if offer.inline is None:
        block, rest = places[0], places[1:]
        header = block[: sizes[0]].data
    else:
        rest = places
        packed_frames = memoryview(offer.inline)
        header = packed_frames[: sizes[0]]
        block, offsets = _moved_in(room, packed_frames, offsets)
    if not offer.apart:
        return header, [
            block[at : at + size] for at, size in zip(offsets[1:], sizes[1:], strict=True)
        ]
    away = dict(zip(offer.apart, rest, strict=True))
    here = iter(offsets[1:])
    buffers: list[Array] = []
    for number, size in enumerate(sizes[1:], 1):
        if number in away:
            buffers.append(away[number])
        else:
            at = next(here)
            buffers.append(block[at : at + size])
    return header, buffers


def inline_frames(room: Room, sizes: list[int], inline: bytes) -> tuple[memoryview, list[Array]]:
    """The header and the frames behind it, of frames that came inside a word.

    Raises:
        ProtocolError: the sizes are not those of the bytes.
    """
    data = memoryview(inline)
    if sizes and min(sizes) >= 0:
        header, *rest = sizes
        if not rest and header <= len(data):
            return data[:header], []
        end = aligned(header)
        block, start = room.copy(data[end:])
        start -= end
        frames = []
        for size in rest:
            frames.append(block[start + end : start + end + size])
            end += aligned(size)
        if rest and end <= len(data):  # else what was cut out above is not what was meant
            return data[:header], frames
    raise ProtocolError(f"{len(data)} bytes are announced as frames of {sizes}")


def _moved_in(room: Room, data: memoryview, offsets: list[int]) -> tuple[Array, list[int]]:
    """The frames behind the header of ``data`` in a block of ours, and their offsets there."""
    first = offsets[1] if len(offsets) > 1 else len(data)
    block, start = room.copy(data[first:])
    return block, [start + at - first for at in offsets]


def raw_bytes(
    room: Room,
    fast: bool,
    header: memoryview,
    buffers: list[Array],
    places: list[Array],
    copying: bool,
) -> ManagedBuffer:
    """The payload's bytes: of one buffer just these, else header and buffers one after another."""
    if fast and buffers:
        data = buffers[0]
    elif not buffers:
        data = np.frombuffer(header, np.uint8)
    else:
        data = np.concatenate([np.frombuffer(header, np.uint8), *buffers])
        copying = False
    if copying or (not places and not data.flags.writeable):
        block, start = room.copy(data.data)
        data = block[start : start + len(data)]
    return ManagedBuffer(data)


def _shares(value: ManagedBuffer, places: list[Array]) -> bool:
    return any(np.may_share_memory(value.array, place) for place in places)


def _decode(
    header: memoryview, buffers: list[Array], copying: bool, shared: bool, device: Any
) -> Any:
    return decode(header, buffers, copy=copying, writable=not shared, device=device)
