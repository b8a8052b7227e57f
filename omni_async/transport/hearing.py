"""A line that is heard out before a failed move is told: the reason may be that the peer is going.

In: a line, word of its end. Out: the moment from which a failure is the engine's own.
Never: holds a failure back for longer than :data:`HEARD_OUT`, or over a line whose end says all.

Where bytes and words travel on connections of their own, the engine of a peer that goes may be gone here a moment
before its line is. What fails by that is to be told as the loss of the peer, which it is.
"""

from __future__ import annotations

import asyncio

from ..abc import Channel

HEARD_OUT = 0.25
"""Seconds for which the end of a line may come after a move failed because of it. A process that was killed loses its
connections together; one that closes a transport says so before its engine goes."""


class Hearing:
    """Of one line."""

    def __init__(self, line: Channel) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = line.end_proves
        self._waiting: list[asyncio.Future[None]] = []

    def out(self) -> asyncio.Future[None] | None:
        """Done when the line has ended, and all who use it know; or when it has not. ``None``: that is now."""
        if self._over:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        self._loop.call_later(HEARD_OUT, self._done, future)
        return future

    def over(self) -> None:
        """The line has ended, and who uses it was told."""
        self._over = True
        for future in list(self._waiting):
            self._done(future)

    def _done(self, future: asyncio.Future[None]) -> None:
        if future in self._waiting:
            self._waiting.remove(future)
        if not future.done():
            future.set_result(None)
