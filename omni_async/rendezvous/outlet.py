"""One stream as its writer sees it.

In: facts that :class:`~omni_async.rendezvous.stream_writers.Writers` learns. Out: how many chunks may go.
Never: decides anything, says a word.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from ..model import TransferKey
from .directory import Ref
from .messages import Chunk, End, Segment


class Broken(enum.Enum):
    """Why a writer may send no more."""

    LEFT = "its reader has left it"
    LOST = "its reader went away"
    CLEANED = "it was ended by cleanup"
    CLOSED = "the transport was closed"
    REPLACED = "another writer has begun a stream under its key"
    EXPIRED = "nobody began to read it within buffer_ttl_seconds"


class Outlet:
    """One stream as its writer sees it."""

    __slots__ = (
        "backlog", "broken", "chunks", "ended", "ended_at", "filed", "granted", "items", "key", "number",
        "ref", "stir", "taken", "told", "window",
    )  # fmt: skip

    def __init__(self, number: int, key: TransferKey, window: int) -> None:
        self.number = number
        self.key = key
        self.window = window
        """Chunks that may wait here for a reader that has not come yet."""
        self.ref: Ref | None = None
        self.granted = 0
        """Chunks that the reader has given credit for, from the begin on."""
        self.chunks = 0
        """Chunks that the writer has handed over."""
        self.told = 0
        """Chunks of these that were sent."""
        self.taken = 0
        """Chunks of these that the reader is done with, as far as it has said."""
        self.items = 0
        self.backlog: deque[Chunk | Segment | End] = deque()
        self.ended = False
        self.ended_at = 0.0
        self.broken: Broken | None = None
        self.filed: deque[tuple[int, TransferKey]] = deque()
        """Larger chunks that are not taken yet: their numbers, and what they are put under."""
        self.stir: Callable[[], None] = _nobody
        """Whom to call for what is in :attr:`Writers.stirred`."""

    @property
    def room(self) -> int:
        """Chunks the writer may hand over now."""
        limit = self.window if self.ref is None else self.granted
        return max(0, limit - self.chunks)

    @property
    def credits(self) -> int:
        """The same, of a stream that has not ended."""
        return 0 if self.ended else self.room

    @property
    def queued(self) -> int:
        """Chunks that wait here for a reader or its credit."""
        return self.chunks - self.told

    @property
    def in_flight(self) -> int:
        """Chunks that were sent and that the reader is not known to be done with."""
        return self.told - self.taken

    @property
    def over(self) -> bool:
        """Whether the end was sent."""
        return self.ended and not self.backlog and self.ref is not None


def _nobody() -> None:
    """Until a writer holds the outlet."""
