"""The books of the world: who may touch which memory, kept apart from the cores that are tested.

In: facts. Out: an assertion, the moment memory is freed twice or under somebody's hands.
Never: asks a core what it believes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from ...model import TransferKey
from ...rendezvous.messages import Message
from ...rendezvous.receiver import Receiver

Ref = tuple[int, int]
"""(line, operation)."""


class Slot:
    """The model's lease: says at once when it is misused."""

    def __init__(self, name: str, in_use: Callable[[], str | None]) -> None:
        self.name = name
        self.pins = 0
        self.dropped = False
        self.freed = False
        self.quarantined = False
        self._in_use = in_use

    def pin(self) -> None:
        assert not self.freed, f"{self.name} pinned after it was freed"
        self.pins += 1

    def unpin(self) -> None:
        assert self.pins > 0, f"{self.name} unpinned once too often"
        self.pins -= 1
        self._settle()

    def drop(self) -> None:
        assert not self.dropped, f"{self.name} dropped twice"
        self.dropped = True
        self._settle()

    def quarantine(self) -> None:
        assert not self.freed, f"{self.name} quarantined after it was freed"
        self.quarantined = True

    def _settle(self) -> None:
        if self.dropped and not self.pins:
            assert not self.freed, f"{self.name} freed twice"
            user = self._in_use()
            assert user is None, f"{self.name} freed while {user}"
            self.freed = True


class Stored:
    """A payload as the world knows it."""

    def __init__(self, number: int, key: TransferKey, consumers: int, inline: bool) -> None:
        self.number = number
        self.key = key
        self.consumers = consumers
        self.inline = inline
        self.deliveries = 0
        self.unheard = 0
        """Deliveries that the sender cannot have learnt of: their line broke first."""
        self.readers: set[tuple[str, int]] = set()
        """(process, operation) that may read the sender's memory now."""
        self.writes: set[Ref] = set()
        """WRITEs that read it now."""
        self.slot = Slot(f"payload {number}", self.in_use)

    def in_use(self) -> str | None:
        if self.readers:
            return f"{sorted(self.readers)} may read it"
        if self.writes:
            return f"an engine writes from it for {sorted(self.writes)}"
        return None


class Stage(enum.Enum):
    """Where an operation of a receiver is, as its caller sees it."""

    ASKED = enum.auto()
    OFFERED = enum.auto()
    PULLED = enum.auto()
    LANDED = enum.auto()
    HELD = enum.auto()
    READING_ON = enum.auto()
    """It has failed, but an engine's read for it cannot be recalled."""
    ENDED = enum.auto()


TAKING = (Stage.OFFERED, Stage.PULLED, Stage.LANDED, Stage.READING_ON)
WAITING = (Stage.ASKED, Stage.OFFERED, Stage.PULLED, Stage.LANDED)
GOING = (Stage.OFFERED, Stage.LANDED, Stage.HELD, Stage.READING_ON)
LIVING = (*WAITING, Stage.HELD, Stage.READING_ON)


class Get:
    """One get of one receiver."""

    def __init__(self, op: int, key: TransferKey, park: bool) -> None:
        self.op = op
        self.park = park
        self.ref: Ref = (0, 0)
        """What the sender calls it, once it has been offered: the line, and a number."""
        self.key = key
        self.stage = Stage.ASKED
        self.stored: Stored | None = None
        self.reading = False
        """(READ) an engine reads; it cannot be recalled."""
        self.landing_freed = False
        self.landing = False


class Line:
    """A connection: words under way in both directions."""

    def __init__(self, peer: int, name: str) -> None:
        self.peer = peer
        self.name = name
        self.up: list[Message] = []
        self.down: list[Message] = []
        self.unheard: dict[int, Stored] = {}
        """Deliveries whose word has not reached the sender, by operation."""


class Process:
    """A receiver process."""

    def __init__(self, name: str, stage: str) -> None:
        self.name = name
        self.stage = stage
        self.core = Receiver()
        self.gets: dict[int, Get] = {}
        self.line: Line | None = None
        self.leaving = False
        """It has said Bye; what is held is still read."""
