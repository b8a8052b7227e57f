"""Encoded frames into the pool, as the pieces of one object: the one copy a payload makes on its way.

In: a head, frames, and the memory they lie in. Out: pieces for the store, and the slots that hold them.
Never: copies what was built in the pool.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from ..._aio.copying import INLINE_COPY, copy, copy_large
from ...abc import Piece
from ...codec import Encoded, Frame
from ...model import aligned
from ...pool import Lease
from ..in_place import in_pool
from .head import Head, seal, tail
from .wiring import StoreWiring


class Laid(NamedTuple):
    pieces: list[Piece]
    leases: list[Lease]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    def drop(self) -> None:
        """The store is done with it, or will not get it."""
        for lease in self.leases:
            lease.drop()


async def lay(
    wiring: StoreWiring, encoded: Encoded, head: Head, owner: str, deadline: float | None
) -> Laid:
    """All frames between a head and a tail, in registered memory.

    Raises:
        PoolExhausted, PayloadTooLarge: as for the pool.

    Cancellation: safe; what was leased is given back, after the copy under way has ended.
    """
    front, back = seal(head), tail(head)
    found = in_pool(wiring.pool, encoded.frames)
    frames = [None if number in found else frame for number, frame in enumerate(encoded.frames, 1)]
    here = [len(front) + aligned(len(encoded.header))]
    here += [aligned(frame.nbytes) for frame in frames if frame is not None]
    here.append(len(back))
    laid = Laid([], [place.lease for place in found.values()])
    try:
        slot = await wiring.pool.lease(sum(here), deadline=deadline, owner=owner, findable=False)
        laid.leases.append(slot)
        target = slot.address
        ctypes.memmove(target, front, len(front))
        ctypes.memmove(target + len(front), encoded.header, len(encoded.header))
        end = begun = target
        end += here[0]
        moves = []
        for number, frame in enumerate(frames, 1):
            if frame is not None:
                moves.append((end, frame))
                end += aligned(frame.nbytes)
                continue
            if end > begun:
                laid.pieces.append(Piece(begun, end - begun))
                begun = end
            place = found[number]
            # The slot goes on to the next boundary: what is behind the frame there is padding.
            laid.pieces.append(Piece(place.address, aligned(place.nbytes)))
        ctypes.memmove(end, back, len(back))
        laid.pieces.append(Piece(begun, end + len(back) - begun))
        await fill(wiring, slot, moves)
    except BaseException:
        laid.drop()
        raise
    return laid


async def lay_plain(wiring: StoreWiring, frame: Frame, owner: str, deadline: float | None) -> Laid:
    """One frame and nothing else. Raises and cancellation: as for :func:`lay`."""
    slot = await wiring.pool.lease(frame.nbytes, deadline=deadline, owner=owner, findable=False)
    try:
        await fill(wiring, slot, [(slot.address, frame)])
    except BaseException:
        slot.drop()
        raise
    return Laid([Piece(slot.address, frame.nbytes)], [slot])


async def fill(wiring: StoreWiring, slot: Lease, moves: list[tuple[int, Frame]]) -> None:
    """Copy frames to addresses in a slot; what is much, off the event loop."""
    pieces = []
    large = sum(frame.nbytes for _, frame in moves) > INLINE_COPY
    for address, frame in moves:
        if frame.address:
            pieces.append((address, frame.address, frame.nbytes))
        elif frame.nbytes:
            start = address - slot.address
            target = slot.view()[start : start + frame.nbytes]
            if large or frame.device != "cpu":
                await wiring.executor.finish(frame.copy_into, target)
            else:
                frame.copy_into(target)
    if large:
        await copy_large(wiring.executor, pieces)
    else:
        for piece in pieces:
            copy(*piece)
