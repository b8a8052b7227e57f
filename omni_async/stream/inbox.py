"""Inbox: what any thread asks the event loop to do, in order.

In: calls. Out: the same calls, on the loop.
Never: waits, wakes the loop more than once for a burst, holds it up for longer than a breath.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Lock, get_ident

from ..errors import ClosedError

BUDGET = 0.002
"""Seconds of one turn of the loop."""


class Inbox:
    """Made on the loop that it serves.

    Args:
        name: whose it is, for errors.
        lock: held by whoever checks and then appends, so that nothing is asked for after the end.
    """

    def __init__(self, name: str, lock: Lock) -> None:
        self._name = name
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False
        self._running = False
        self._closed = False

    @property
    def on_loop(self) -> bool:
        return get_ident() == self._thread

    def check(self) -> None:
        """Raises: ClosedError: it was closed."""
        if self._closed:
            raise ClosedError(f"{self._name} is closed")

    def append(self, call: Callable[[], None]) -> None:
        """Ask for a call; :meth:`wake` has to follow."""
        self._calls.append(call)

    def wake(self) -> None:
        """Have done what was asked for: now where this is the loop's thread, else soon."""
        if self.on_loop:
            self._run()
        elif not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._rung)
            except RuntimeError:  # the loop was closed under it
                self._closed = True
                self.check()

    def _rung(self) -> None:
        self._woken = False  # before the calls: what comes from now on rings again
        self._run()

    def _run(self) -> None:
        if self._running:  # a call made here asks for another one
            return
        self._running = True
        calls, limit = self._calls, self._loop.time() + BUDGET
        try:
            while calls:
                calls.popleft()()
                if self._loop.time() > limit:
                    break
        finally:
            self._running = False
            if calls:
                self._loop.call_soon(self._run)

    def close(self) -> None:
        """Refuse from now on; what was asked for before is done."""
        with self._lock:
            self._closed = True
        while self._calls:
            self._calls.popleft()()
