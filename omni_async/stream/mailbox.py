"""Mailbox: events between the loop, where they come up, and whoever takes them.

In: events of requests. Out: the same in order, less those of requests that were dropped.
Never: takes a lock.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .events import Event


class Request:
    """One generation of a request id, in one direction."""

    __slots__ = ("dead", "events", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.events: deque[Event] = deque()
        """Not taken yet."""
        self.dead = False
        """Nobody will hear of it any more."""

    def drop(self) -> None:
        """Any thread."""
        self.dead = True
        self.events.clear()


class Mailbox:
    """Filled by the event loop, emptied by one taker."""

    def __init__(self) -> None:
        self._filled: deque[Request] = deque()
        """One entry for each event."""
        self._waiter: asyncio.Future[None] | None = None

    def put(self, request: Request, event: Event) -> None:
        if request.dead:
            return
        request.events.append(event)
        self._filled.append(request)
        self.ring()

    def take(self) -> tuple[Request, Event] | None:
        """The next event, if there is one."""
        while self._filled:
            request = self._filled.popleft()
            try:
                event = request.events.popleft()
            except IndexError:  # it was dropped
                continue
            if not request.dead:
                return request, event
        return None

    def __len__(self) -> int:
        """Events, those of dropped requests included."""
        return len(self._filled)

    def ring(self) -> None:
        """Wake who waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def awaited(self) -> bool:
        return self._waiter is not None

    async def wait(self) -> None:
        """Until :meth:`ring`. Cancellation: safe."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
