"""The books of the world of KV transfers: what every process, line and operation of it is.

In: nothing. Out: who holds which block, and what lies in it, apart from what the cores believe.
Never: decides what happens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omni_async.errors import ProtocolError
from omni_async.kv.audience import Seat
from omni_async.kv.given import GivenShare, Session, State
from omni_async.kv.giving import Giving
from omni_async.kv.taking import Step, TakenShare, Taking
from omni_async.kv.words import AnyWord, Begun, Room

LAYERS = 3
BLOCKS = 8
"""Of each process."""
SIZE = 2
"""Blocks of a request."""
ADDRESSES = ("P", "Q")
CONSUMERS = ("A", "B")
REQUESTS = ("r", "s", "t", "u")
GARBAGE = "garbage"

Memory = dict[tuple[int, int], str]
"""What lies in a layer's part of a block."""


class End:
    """The last that is heard of a line."""

    def __init__(self, proven: bool) -> None:
        self.proven = proven


@dataclass(eq=False)
class Line:
    """Words under way in both directions."""

    name: str
    giver: Giver
    taker: Taker
    up: deque[AnyWord | End] = field(default_factory=deque)
    down: deque[AnyWord | End] = field(default_factory=deque)
    broken: bool = False


@dataclass(eq=False)
class Sent:
    """A session as its caller knows it."""

    core: Session
    blocks: list[int]
    values: list[list[str]]
    """Of each layer, of each block."""
    consumers: int = 1
    over: bool = False
    seen: State = State.OPEN


@dataclass(eq=False)
class Got:
    """A share as its caller knows it."""

    core: TakenShare
    blocks: list[int]
    done: bool = False
    freed: bool = False
    torn: bool = False
    """Its memory was taken away from whoever might write."""
    seen: Step = Step.PARKED
    slots: dict[int, int] = field(default_factory=dict)
    """(staged) Landing slots that its producer was told of, and how often."""
    source: Sent | None = None


@dataclass(eq=False)
class Write:
    """One that an engine does, from blocks to blocks or to a landing slot."""

    giver: Giver
    share: GivenShare
    layer: int
    sent: Sent
    taker: Taker
    got: Got
    room: Room | None


@dataclass(eq=False)
class Read:
    taker: Taker
    got: Got
    layers: list[int]
    sent: Sent
    source: Giver


@dataclass(eq=False)
class Copy:
    taker: Taker
    got: Got
    layer: int
    slot: int


class Giver:
    """A producer's process."""

    def __init__(self, address: str, incarnation: str, *, writes: bool, staging: bool) -> None:
        self.writes = writes
        self.address = address
        self.incarnation = incarnation
        self.staging = staging
        self.alive = True
        self.closed = False
        self.lines: dict[str, Line] = {}
        self.memory: Memory = {}
        self.free = list(range(BLOCKS))
        self.sent: list[Sent] = []
        self.given: dict[tuple[str, int], Session] = {}
        """What each share was planned for."""
        self.core = Giving(
            LAYERS,
            writes=writes,
            plan=self._plan,
            seat=lambda _: Seat(),
            describe=str,
        )

    def _plan(self, share: GivenShare) -> None:
        assert share.session is not None
        assert share.session.blocks is not None, "planned without blocks"
        assert share.session.mode is share.ask.mode, "of another mode than was asked for"
        if len(share.session.blocks) != len(share.ask.blocks):
            raise ProtocolError("the blocks do not fit")
        share.plan = share.ask.blocks
        self.given[share.peer, share.ask.ticket] = share.session
        share.staged = self.writes and (share.ask.staged or self.staging)


class Taker:
    """A consumer's process."""

    def __init__(self, name: str, incarnation: str, *, writes: bool, staged: bool) -> None:
        self.name = name
        self.incarnation = incarnation
        self.staged = staged
        self.alive = True
        self.lines: dict[str, Line] = {}
        self.memory: Memory = {}
        self.free = list(range(BLOCKS))
        self.slots: dict[int, dict[int, str]] = {}
        """What lies in each landing slot that was ever told, by block."""
        self.owners: dict[int, Got] = {}
        self.got: list[Got] = []
        self.doubts: list[Got] = []
        self.core = Taking(LAYERS, written_to=writes, plan=_fits, describe=str)


def _fits(share: TakenShare, word: Begun) -> None:
    if len(word.blocks) != len(share.blocks):
        raise ProtocolError("the blocks do not fit")
