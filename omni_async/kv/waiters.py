"""Who waits until something of one transfer has changed.

In: word that something has, points in time. Out: returns of those who wait, or their errors.
Never: knows what has changed; ends the transfer when a wait is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .._aio.deadline import Deadlines, seconds
from ..errors import OmniAsyncError, TransferTimeout
from ..transport import DEFAULT


class Waiters:
    """Those of one transfer."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._futures: dict[asyncio.Future[None], None] = {}

    def stir(self) -> None:
        """Something has changed; on the loop."""
        futures, self._futures = self._futures, {}
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def change(self, deadline: float | None, late: Callable[[], TransferTimeout]) -> None:
        """Wait for the next change.

        Args:
            deadline: of the loop's clock, see :func:`deadline_of`.
            late: makes the error of a wait that is over before.

        Raises:
            TransferTimeout: what ``late`` made.

        Cancellation: safe.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def expire() -> None:
            if not future.done():
                future.set_exception(late())

        token = None if deadline is None else self._deadlines.add(deadline, expire)
        self._futures[future] = None
        try:
            await future
        finally:
            self._futures.pop(future, None)
            if token is not None:
                self._deadlines.discard(token)


def deadline_of(timeout: Any) -> float | None:
    """When a wait that begins now is over; ``None`` for never, which is the default.

    Raises:
        UsageError: no number of seconds.
    """
    limit = None if timeout is DEFAULT else seconds(timeout)
    return None if limit is None else asyncio.get_running_loop().time() + limit


def failed(error: OmniAsyncError) -> OmniAsyncError:
    """A copy to be raised, so that each who waits has a traceback of his own."""
    make, parts = error.__reduce__()
    again: OmniAsyncError = make(*parts)
    again.__cause__ = error.__cause__
    return again
