"""CompletionWatch: learns of the end of operations that can only be asked about.

In: functions that say whether an operation is over. Out: futures of the event loop.
Never: runs a thread, asks again after an operation's end, runs at all while nothing is under way.

An operation is asked about soon at first, then at intervals that grow with its age: what takes 40 us is
known of 50 us late at worst, what takes 40 ms half a millisecond late, and the loop gives a few per cent
of its time for it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time

from .asking import FIRST, Over, pause, settle
from .kernel_timer import KernelTimer

LONGEST = 500e-6

_TOGETHER = 10e-6
"""What is due within this time is asked about in the same wake-up."""

_Entry = tuple[float, int, float, Over, "asyncio.Future[None]"]
"""When it is due, a serial number, when it began, what to ask, whom to tell."""


class CompletionWatch:
    """All operations of one owner on one event loop, with one timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[_Entry] = []
        self._serial = itertools.count()
        self._timer: KernelTimer | None = None
        self._at = 0.0
        """When the timer goes off; 0 while it is not set."""
        self._closed = False
        self.asked = 0
        """How often operations were asked about so far."""

    def __len__(self) -> int:
        """Operations under way."""
        return len(self._heap)

    def until(self, over: Over) -> asyncio.Future[None]:
        """Done when ``over`` says so, or failed with what it raises.

        Cancelling the future abandons the wait only: the operation is asked about to its end.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        now = time.monotonic()
        due = now + FIRST
        heapq.heappush(self._heap, (due, next(self._serial), now, over, future))
        if not self._at or due < self._at:
            self._set(due, now)
        return future

    def close(self) -> None:
        """Give the timer back as soon as nothing is under way. Idempotent."""
        self._closed = True
        self._maybe_done()

    def _set(self, due: float, now: float) -> None:
        if self._timer is None:
            self._timer = KernelTimer(self._loop, self._ask)
        self._at = due
        self._timer.set(due - now)

    def _ask(self) -> None:
        self._at = 0.0
        heap, again = self._heap, []
        now = time.monotonic()
        while heap and heap[0][0] <= now + _TOGETHER:
            _, serial, began, over, future = heapq.heappop(heap)
            self.asked += 1
            try:
                ended = over()
            except BaseException as error:  # noqa: BLE001 - whoever waits is told, whatever it is
                settle(future, error)
                continue
            if ended:
                settle(future, None)
            else:
                again.append((now + pause(now - began, LONGEST), serial, began, over, future))
        for entry in again:
            heapq.heappush(heap, entry)
        if heap:
            now = time.monotonic()
            self._set(max(heap[0][0], now + FIRST), now)
        else:
            self._maybe_done()

    def _maybe_done(self) -> None:
        if self._closed and not self._heap and self._timer is not None:
            self._timer.close()
            self._timer = None
