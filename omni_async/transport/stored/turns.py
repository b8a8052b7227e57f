"""Turns: puts that wait for room in a store are served in their order.

In: operations. Out: each in turn.
Never: polls; lets who has given up hold up the others.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .operations import Late, Operation

Turn = asyncio.Future[None]


class Turns:
    """A line. Who is at its head has its turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Turn] = deque()

    def __len__(self) -> int:
        return len(self._line)

    async def join(self, operation: Operation, late: Exception | None = None) -> Turn:
        """Stand in line until one's turn has come; then :meth:`leave` it.

        Args:
            late: raised instead of :class:`Late`.

        Cancellation: safe.
        """
        turn: Turn = self._loop.create_future()
        self._line.append(turn)
        if self._line[0] is turn:
            turn.set_result(None)
        try:
            await operation.answer(turn)
        except BaseException as error:
            self.leave(turn)
            if late is not None and isinstance(error, Late):
                raise late from None
            raise
        return turn

    def leave(self, turn: Turn) -> None:
        """Let the next one have its turn."""
        self._line.remove(turn)
        if self._line and not self._line[0].done():
            self._line[0].set_result(None)
