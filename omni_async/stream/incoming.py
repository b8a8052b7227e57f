"""One request that is read.

In: what its reading and its taker do. Out: in which state it is.
Never: reads anything.
"""

from __future__ import annotations

from .events import StreamFailed, StreamFinished, StreamState
from .mailbox import Request
from .reading import Metadata, Reading


class Incoming(Request):
    """One generation of a request id."""

    __slots__ = ("active", "done", "index", "metadata", "over", "reading", "segment", "told")

    def __init__(self, request_id: str, metadata: Metadata) -> None:
        super().__init__(request_id)
        self.metadata = metadata
        self.reading: Reading | None = None
        self.active = False
        """Whether it is one of those that may be active."""
        self.over = False
        """Its last event is there."""
        self.index = 0
        """Of the next chunk."""
        self.segment = 0
        self.told = 0
        """Events so far."""
        self.done = 0
        """Events whose taking the loop knows of."""

    @property
    def waits(self) -> bool:
        """Whether it is up to the sender now."""
        return self.active and not self.over and self.told == self.done

    @property
    def state(self) -> StreamState:
        try:
            first = self.events[0]
        except IndexError:  # none, or another thread has just taken it
            return StreamState.WAITING_FOR_CHUNK if self.active else StreamState.PARKED
        if isinstance(first, StreamFinished):
            return StreamState.FINISHED
        return StreamState.FAILED if isinstance(first, StreamFailed) else StreamState.READY
