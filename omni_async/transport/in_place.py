"""Frames that already lie in the pool: they are sent from where they are.

In: a pool, frames. Out: where each of these frames lies, with a hold on its slot.
Never: lets two payloads have the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from ..codec import Frame
from ..model import ALIGNMENT
from ..pool import Lease, Pool


class InPlace(NamedTuple):
    lease: Lease
    address: int
    nbytes: int


def in_pool(pool: Pool, frames: list[Frame]) -> dict[int, InPlace]:
    """These frames by their number, from 1; whoever asks drops the leases.

    Memory that is under way already is copied like any other: its receivers write where they read, and
    what is sent twice arrives as two things.
    """
    found: dict[int, InPlace] = {}
    if not pool.findable:
        return found
    ranges: dict[Lease, list[tuple[int, int]]] = {}
    for number, frame in enumerate(frames, 1):
        if frame.address and frame.nbytes and not frame.address % ALIGNMENT:
            lease = pool.find(frame.address, frame.nbytes)
            if lease is None:
                continue
            own = ranges.setdefault(lease, [])
            start, end = frame.address, frame.address + frame.nbytes
            if lease.pins or lease.holds - len(own) > 1:
                continue  # another payload has it
            if any(start < other_end and other_start < end for other_start, other_end in own):
                continue  # so has this one
            own.append((start, end))
            lease.hold()
            found[number] = InPlace(lease, frame.address, frame.nbytes)
    return found
