"""Time limits: what callers pass, and one timer for all who wait under one.

In: seconds as a caller passed them; points in time. Out: checked seconds; a call at each point that was
not called off. Never: makes a task or a timer of the loop per wait.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable

from ..errors import UsageError


def seconds(timeout: object, what: str = "timeout") -> float | None:
    """A time limit in seconds, ``None`` for no limit.

    Args:
        timeout: ``None``, or a number of at least 0; infinity is no limit.
        what: the argument's name, for the error.

    Raises:
        UsageError: anything else; names the value.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise UsageError(f"{what} must be seconds or None, not {timeout!r}")
    if not timeout >= 0:  # NaN is not either
        raise UsageError(f"{what} must not be negative or NaN, it is {timeout!r}")
    try:
        limit = float(timeout)
    except OverflowError:  # an int beyond every clock
        return None
    return None if math.isinf(limit) else limit


class Deadlines:
    """Calls at points in time, nearly all of which are called off before.

    A timer of the event loop's own costs a microsecond to cancel, and stays on the loop's heap until
    then, in the way of all others. Here a call that is called off leaves a pair of numbers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[int, Callable[[], None]] = {}
        self._heap: list[tuple[float, int]] = []
        self._tokens = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf
        """When the timer goes off."""

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, when: float, call: Callable[[], None]) -> int:
        """Call at ``when`` of the loop's clock, unless the returned token is discarded before."""
        token = next(self._tokens)
        self._calls[token] = call
        heapq.heappush(self._heap, (when, token))
        if when < self._at:
            self._set(when)
        return token

    def discard(self, token: int) -> None:
        """Call it off. Idempotent."""
        calls = self._calls
        calls.pop(token, None)
        if len(self._heap) > 2 * len(calls) + _SPARE:
            self._heap = [entry for entry in self._heap if entry[1] in calls]
            heapq.heapify(self._heap)

    def close(self) -> None:
        """Call off all. Idempotent."""
        self._calls.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._over)
        self._at = when

    def _over(self) -> None:
        # A loop may round its clock down: what the timer was set for is due whatever the clock says.
        now = max(self._loop.time(), self._at)
        self._timer, self._at = None, math.inf
        heap, calls = self._heap, self._calls
        due = []
        while heap and (heap[0][0] <= now or heap[0][1] not in calls):
            call = calls.pop(heapq.heappop(heap)[1], None)
            if call is not None:
                due.append(call)
        if heap:
            self._set(heap[0][0])
        for call in due:
            call()


_SPARE = 64
"""Entries called off that may wait to be swept out."""
