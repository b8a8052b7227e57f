"""One request that is written, and what all of them may hold.

In: submissions, what has left. Out: whether there is room.
Never: sends anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from ..errors import BackPressure, OmniAsyncError
from ..model import EdgeName
from .limits import Limits
from .mailbox import Request
from .processor import Context
from .writing import Queue, Writing


class Outgoing(Request):
    """One generation of a request id."""

    __slots__ = (
        "after", "before", "chunks", "closed", "context", "error", "nbytes", "over", "queue", "reason",
        "sent", "watermark", "writing",
    )  # fmt: skip

    def __init__(self, request_id: str, context: Context, before: Outgoing | None) -> None:
        super().__init__(request_id)
        self.context = context
        # Under the lock:
        self.chunks = 0
        """Outputs and chunks that wait."""
        self.nbytes = 0
        self.watermark = -1
        """The furthest position of what was submitted in this segment."""
        self.closed = False
        """Its last output was submitted."""
        # The loop's:
        self.queue: Queue = deque()
        self.sent = 0
        """Chunks that have left."""
        self.writing: Writing | None = None
        self.error: OmniAsyncError | None = None
        self.over = False
        self.reason = ""
        """Why it ended before its end."""
        self.before = before
        """The generation whose end has to leave first."""
        self.after: Outgoing | None = None

    def covers(self, position: int | None) -> bool:
        """Whether what leads up to this position was submitted before."""
        return position is not None and position <= self.watermark


class Submission(NamedTuple):
    request: Outgoing
    output: Any
    nbytes: int
    finished: bool
    segment_ended: bool
    done: asyncio.Future[None] | None
    """Of whoever waits until all of it has left."""


class Budget:
    """What waits. Used under the lock."""

    def __init__(self, edge: EdgeName, limits: Limits) -> None:
        self._edge = edge
        self._limits = limits
        self.chunks = 0
        self.nbytes = 0

    def check(self, request_id: str, request: Outgoing | None, nbytes: int) -> None:
        """Raises: BackPressure: one more output is too much. Its ``key`` is the request whose limit it is."""
        limits = self._limits
        if (
            request is not None
            and request.chunks
            and (request.chunks >= limits.chunks or request.nbytes + nbytes > limits.nbytes)
        ):
            raise BackPressure(
                f"request {request_id!r} on {self._edge}: {request.chunks} chunks of {request.nbytes} "
                "bytes wait already; its consumer is behind",
                key=request_id,
                edge=self._edge,
            )
        if self.chunks and (
            self.chunks >= limits.total_chunks or self.nbytes + nbytes > limits.total_nbytes
        ):
            raise BackPressure(
                f"request {request_id!r} on {self._edge}: of all requests {self.chunks} chunks of "
                f"{self.nbytes} bytes wait already",
                edge=self._edge,
            )

    def add(self, request: Outgoing, chunks: int, nbytes: int) -> None:
        """Also less than nothing."""
        request.chunks += chunks
        request.nbytes += nbytes
        self.chunks += chunks
        self.nbytes += nbytes

    @property
    def relaxed(self) -> bool:
        """Whether so much has left that it is worth to wake those who wait for all."""
        return (
            2 * self.chunks <= self._limits.total_chunks
            and 2 * self.nbytes <= self._limits.total_nbytes
        )
