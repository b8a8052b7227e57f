"""Lease: who may use a slot, and when it is free again. A table, and counts.

In: events. Out: the new state, told to the book that keeps the slot.
Never: frees what an operation still uses, touches memory, asyncio or the clock.

Holders are those who want the bytes kept: the offer, the delivery, a living view. Pins are
operations in flight: a peer or an engine may touch the bytes at any moment.

===========  =====================================================================
FREE         given back; a later lease of the same bytes has a greater generation
HELD         has holders, nobody else touches the bytes
IN_FLIGHT    an operation uses the bytes
QUARANTINED  so it does, but whoever began it has given up (time limit, cancellation)
===========  =====================================================================
"""

from __future__ import annotations

import enum
from typing import Any, Protocol

from .segment import Segment

__all__ = ["TABLE", "Book", "Event", "Lease", "LeaseError", "State"]


class State(enum.IntEnum):
    FREE = 0
    HELD = 1
    IN_FLIGHT = 2
    QUARANTINED = 3


class Event(enum.IntEnum):
    HOLD = 0
    DROP = 1
    PIN = 2
    UNPIN = 3
    QUARANTINE = 4


class LeaseError(RuntimeError):
    """A lease was used against its table: an internal bug, never a caller's mistake."""


_FREE, _HELD, _FLIGHT, _QUARANTINED = State
_HOLD, _DROP, _PIN, _UNPIN, _QUARANTINE = Event
_NO = None

TABLE: tuple[tuple[tuple[State | None, State | None, State | None] | None, ...], ...] = (
    # Where an event leads, by what is left after it: nothing, holders only, pins.
    #    HOLD                     DROP
    #    PIN                      UNPIN                     QUARANTINE
    (  # FREE
        _NO, _NO,
        _NO, _NO, _NO,
    ),
    (  # HELD
        (_NO, _HELD, _NO), (_FREE, _HELD, _NO),
        (_NO, _NO, _FLIGHT), _NO, _NO,
    ),
    (  # IN_FLIGHT
        (_NO, _NO, _FLIGHT), (_NO, _NO, _FLIGHT),
        (_NO, _NO, _FLIGHT), (_FREE, _HELD, _FLIGHT), (_NO, _NO, _QUARANTINED),
    ),
    (  # QUARANTINED
        (_NO, _NO, _QUARANTINED), (_NO, _NO, _QUARANTINED),
        (_NO, _NO, _QUARANTINED), (_FREE, _HELD, _QUARANTINED), (_NO, _NO, _QUARANTINED),
    ),
)  # fmt: skip
"""``TABLE[state][event]``; ``None`` where the event is not allowed."""

_WRONG = {
    Event.DROP: "double drop: it has no holder",
    Event.UNPIN: "unpin below zero: no operation is in flight",
    Event.QUARANTINE: "quarantine without an operation in flight",
}


class Book(Protocol):
    """Keeps the slots; hears of each change of state after it, except of one to IN_FLIGHT."""

    def moved(self, lease: Lease, before: State) -> None: ...


class Lease:
    """Bytes of a pool, from being handed out until nobody needs them; one holder to begin with.

    ``offset`` counts from the start of ``segment``, ``size`` is ``nbytes`` rounded up.
    """

    __slots__ = (
        "_book",
        "address",
        "findable",
        "generation",
        "holds",
        "nbytes",
        "offset",
        "pins",
        "segment",
        "size",
        "state",
        "withdrawn",
    )

    def __init__(
        self,
        book: Book,
        segment: Segment,
        offset: int,
        nbytes: int,
        size: int,
        generation: int,
        findable: bool = True,
    ) -> None:
        self._book = book
        self.segment = segment
        self.offset = offset
        self.nbytes = nbytes
        self.size = size
        self.generation = generation
        self.findable = findable
        """The book finds it by its addresses."""
        self.withdrawn = False
        """Its pages were taken away: nobody gets these addresses again."""
        self.address = segment.address + offset
        self.state = _HELD
        self.holds = 1
        self.pins = 0

    def hold(self) -> None:
        """One more holder."""
        self._step(_HOLD, self.holds + 1, self.pins)

    def drop(self) -> None:
        """One holder less; the last one frees the slot unless an operation is in flight."""
        self._step(_DROP, self.holds - 1, self.pins)

    def pin(self) -> None:
        """An operation begins."""
        self._step(_PIN, self.holds, self.pins + 1)

    def unpin(self) -> None:
        """An operation has ended for certain: nobody will touch the bytes for it any more."""
        self._step(_UNPIN, self.holds, self.pins - 1)

    def quarantine(self) -> None:
        """The operations in flight were given up; the slot waits for their end."""
        self._step(_QUARANTINE, self.holds, self.pins)

    @property
    def keep(self) -> Any:
        """What keeps the memory mapped, for whoever has an address of it."""
        return self.segment.keep

    def byte(self, at: int) -> Any:
        """One of the writable bytes."""
        if self.state is _FREE:
            raise LeaseError(f"view refused, use after free: {self!r}")
        start = self.offset + at
        return self.segment.keep[start : start + 1]

    def view(self) -> Any:
        """The writable bytes: a memoryview, or a tensor where the memory is a device's."""
        if self.state is _FREE:
            raise LeaseError(f"view refused, use after free: {self!r}")
        return self.segment.keep[self.offset : self.offset + self.nbytes]

    def _step(self, event: Event, holds: int, pins: int) -> None:
        before = self.state
        row = TABLE[before][event]
        after = row and row[2 if pins > 0 else 1 if holds > 0 else 0]
        if after is None or holds < 0 or pins < 0:
            raise LeaseError(self._complaint(event))
        self.holds = holds
        self.pins = pins
        if after is not before:
            self.state = after
            if after is not _FLIGHT:  # the beginning of an operation changes nothing in the book
                self._book.moved(self, before)

    def _complaint(self, event: Event) -> str:
        wrong = "use after free" if self.state == State.FREE else _WRONG[event]
        return f"{event.name.lower()} refused, {wrong}: {self!r}"

    def __repr__(self) -> str:
        return (
            f"<Lease #{self.generation} {self.state.name}, {self.nbytes:,} bytes at offset "
            f"{self.offset:,} of region {self.segment.region.id}, "
            f"{self.holds} holders, {self.pins} pins>"
        )
