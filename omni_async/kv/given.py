"""What a producer gives: sessions, and each consumer's share in one.

In: nothing; the producer's core keeps them. Out: where each stands.
Never: decides anything.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..errors import OmniAsyncError
from .audience import Audience
from .words import ALL, Ask, Mode, Reason, Room


class State(enum.IntEnum):
    """It only grows."""

    OPEN = 0
    SEALED = 1
    DELIVERED = 2
    FAILING = 3
    FAILED = 4


@dataclass(eq=False, slots=True)
class GivenShare:
    """One consumer's part."""

    peer: str
    """The line on which it is told."""
    who: str
    """The consumer, the same on another line."""
    ask: Ask
    where: Any = None
    """Where its caches lay when it asked."""
    session: Session | None = None
    plan: Any = None
    """What is to be moved, as whoever moves it knows it."""
    staged: bool = False
    todo: deque[int] = field(default_factory=deque)
    """Layers that are ready, and not begun."""
    rooms: deque[Room] = field(default_factory=deque)
    told: set[int] = field(default_factory=set)
    """(READ, MAP) Layers that may be read."""
    under_way: dict[int, int] = field(default_factory=dict)
    """Layer → slot, -1 without one."""
    landed: set[int] = field(default_factory=set)
    reason: Reason | None = None
    """Why it has failed."""
    text: str = ""
    owes: bool = False
    """Its consumer waits for word of the last write's end."""


@dataclass(eq=False, slots=True)
class Session:
    """One request's cache, on its way to ``consumers`` instances."""

    request_id: str
    mode: Mode
    consumers: int
    blocks: list[int] | None = None
    tokens: int = ALL
    ready: dict[int, None] = field(default_factory=dict)
    """Layers, in the order in which they became ready."""
    shares: list[GivenShare] = field(default_factory=list)
    audience: Audience = field(init=False)
    state: State = State.OPEN
    error: OmniAsyncError | None = None

    def __post_init__(self) -> None:
        self.audience = Audience(self.consumers)

    @property
    def writing(self) -> bool:
        return any(share.under_way for share in self.shares)

    @property
    def over(self) -> bool:
        return self.state in (State.DELIVERED, State.FAILED)
