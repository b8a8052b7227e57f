"""Encoded frames into slots of the pool: the one copy a payload makes on its way.

In: frames and the memory they lie in. Out: a Payload that the rendezvous can offer.
Never: joins frames in private memory, except for small payloads that ride inside their offer.
"""

from __future__ import annotations

import ctypes

from .._aio.copying import INLINE_COPY, Piece, copy, copy_in_order, copy_large
from ..codec import Encoded, Frame
from ..model import ALIGNMENT, Verb, packed
from ..pool import Lease
from ..rendezvous.messages import PlaceWord
from ..rendezvous.payload import Payload
from . import on_device
from .filling import Filling
from .in_place import in_pool
from .wiring import Wiring

COPY_STEP = 16 << 20
STEPS = 8
"""How often a copy tells how far it is: each time its thread takes the GIL."""

_PADDING = [bytes(nbytes) for nbytes in range(ALIGNMENT)]


async def place(wiring: Wiring, encoded: Encoded, owner: str, deadline: float | None) -> Payload:
    """Put all frames where a receiver can reach them.

    Where the engine writes, what does not ride in its offer is placed but not copied yet when this returns: see
    :func:`fill_on`.

    Cancellation: safe; what was leased is given back, after the copy under way has ended.
    """
    filling = None
    frames = encoded.frames
    apart: dict[int, PlaceWord] = {}
    leases: list[Lease] = []
    if wiring.pool.findable and not _rides_better(wiring, encoded):
        for number, found in in_pool(wiring.pool, frames).items():
            leases.append(found.lease)
            apart[number] = _word(found.lease, found.address - found.lease.address, found.nbytes)
    try:
        here = [frame for i, frame in enumerate(frames, 1) if i not in apart] if apart else frames
        sizes = [len(encoded.header)]
        on_host = True
        for frame in here:
            sizes.append(frame.nbytes)
            on_host = on_host and frame.device == "cpu"
        offsets, total = packed(sizes)
        places: list[PlaceWord] = []
        inline = None
        lease = await wiring.pool.lease(
            total + ALIGNMENT, deadline=deadline, owner=owner, findable=False
        )
        leases.append(lease)
        mark = None
        if not wiring.on_device:
            mark = lease.byte(total)
            mark[0] = 0
        if on_host and total <= wiring.options.inline_limit:
            # The slot stays empty: it is there so that these bytes count in the pool's limit too.
            inline = _joined(encoded.header, here)
        else:
            places.append(_word(lease, 0, total))
            if wiring.on_device:
                await on_device.fill(wiring, lease, encoded.header, here, offsets)
            else:
                ctypes.memmove(lease.address, encoded.header, len(encoded.header))
                pieces = _pieces(lease, here, offsets) if wiring.engine.verb is Verb.WRITE else []
                if pieces and _addressed(here):
                    filling = Filling(lease, total, pieces)
                    filling.reached(lease.address + offsets[1])
                elif not _fill_at_once(lease, here, offsets, total):
                    await _fill(wiring, lease, here, offsets)
    except BaseException:
        for lease in leases:
            lease.drop()
        raise
    if apart:
        sizes = [len(encoded.header), *(frame.nbytes for frame in frames)]
        places += apart.values()
    payload = Payload(
        encoded.nbytes,
        sizes,
        places=places,
        apart=list(apart),
        leases=leases,
        inline=inline,
        fast=encoded.fast,
        mark=mark,
        mark_place=None if mark is None else _word(lease, total, 1),
    )
    payload.filling = filling
    return payload


async def fill_on(wiring: Wiring, filling: Filling) -> None:
    """Copy what :func:`place` has left out, while its offer travels and the engine may already write the beginning.

    Raises:
        ClosedError: the transport is closed.

    Cancellation: ends after everything has been copied.
    """
    lease = filling.lease
    lease.hold()
    try:
        if sum(nbytes for _, _, nbytes in filling.pieces) <= INLINE_COPY:
            for piece in filling.pieces:
                copy(*piece)
            filling.reached(lease.address + filling.nbytes)
            return
        step = max(INLINE_COPY, min(COPY_STEP, filling.nbytes // STEPS))
        await copy_in_order(wiring.executor, filling.pieces, step, filling.reached)
    finally:
        if not filling.full:
            filling.fail("its sender could not copy it")
        lease.drop()


def inline_of(encoded: Encoded, limit: int) -> tuple[list[int], bytes] | None:
    """Frame sizes and all frames in one piece; ``None`` for more than ``limit`` bytes, or a device's."""
    if encoded.nbytes > limit:
        return None
    sizes = [len(encoded.header)]
    for frame in encoded.frames:
        if frame.device != "cpu":
            return None
        sizes.append(frame.nbytes)
    joined = _joined(encoded.header, encoded.frames)
    return (sizes, joined) if len(joined) <= limit else None


def _rides_better(wiring: Wiring, encoded: Encoded) -> bool:
    """What is small costs less inside the offer than a write of its own, wherever it lies."""
    return (
        wiring.engine.verb is Verb.WRITE
        and encoded.nbytes <= wiring.options.inline_limit // 2  # with room for padding
    )


def _word(lease: Lease, offset: int, nbytes: int) -> PlaceWord:
    return PlaceWord(lease.segment.region.id, lease.offset + offset, nbytes, lease.generation)


def _joined(header: bytes, frames: list[Frame]) -> bytes:
    """Small frames in one piece, laid out as they would lie in a slot."""
    if not frames:
        return header
    parts: list[bytes | bytearray] = [header, _PADDING[-len(header) % ALIGNMENT]]
    for frame in frames:
        nbytes = frame.nbytes
        if frame.address:
            parts.append(ctypes.string_at(frame.address, nbytes))
        else:
            data = bytearray(nbytes)
            frame.copy_into(memoryview(data))
            parts.append(data)
        parts.append(_PADDING[-nbytes % ALIGNMENT])
    return b"".join(parts)


def _fill_at_once(lease: Lease, frames: list[Frame], offsets: list[int], total: int) -> bool:
    """Copy little frames on the event loop; ``False`` when they are too much for that."""
    if total > INLINE_COPY:
        return False
    address = lease.address
    for frame, offset in zip(frames, offsets[1:], strict=True):
        if frame.address:
            copy(address + offset, frame.address, frame.nbytes)
        elif frame.device != "cpu":
            return False
        elif frame.nbytes:
            frame.copy_into(lease.view()[offset : offset + frame.nbytes])
    return True


async def _fill(wiring: Wiring, lease: Lease, frames: list[Frame], offsets: list[int]) -> None:
    """Copy off the event loop: what lies in CPU memory in pieces, the rest frame by frame."""
    for frame, offset in zip(frames, offsets[1:], strict=True):
        if not frame.address and frame.nbytes:
            target = lease.view()[offset : offset + frame.nbytes]
            await wiring.executor.finish(frame.copy_into, target)
    await copy_large(wiring.executor, _pieces(lease, frames, offsets))


def _addressed(frames: list[Frame]) -> bool:
    return all(frame.address or not frame.nbytes for frame in frames)


def _pieces(lease: Lease, frames: list[Frame], offsets: list[int]) -> list[Piece]:
    """What lies in CPU memory: where to, where from, how much."""
    return [
        (lease.address + offset, frame.address, frame.nbytes)
        for frame, offset in zip(frames, offsets[1:], strict=True)
        if frame.address
    ]
