"""CompletionRegistry: who waits for the answer to which operation.

In: operation ids, answers. Out: futures, and counts of answers that nobody waited for.
Never: raises because an answer came late or twice, keeps what nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from typing import Any

_REMEMBERED = 64
_FIRST_SWEEP = 1024


class CompletionRegistry:
    """Operation id → future, for one event loop.

    An answer that finds no waiting future is counted and otherwise ignored: ``late`` when its waiter
    had gone (cancelled, expired, discarded), ``doubled`` when the operation was answered before,
    ``unknown`` when nobody ever asked, or so long ago that it is forgotten.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        # Whether an operation that is over was answered; bounded, the oldest are forgotten.
        self._past: OrderedDict[int, bool] = OrderedDict()
        self._sweep_at = _FIRST_SWEEP
        self._closed: Exception | None = None
        self.late = 0
        self.doubled = 0
        self.unknown = 0

    def __len__(self) -> int:
        """Operations that somebody waits for."""
        return sum(1 for future in self._waiting.values() if not future.done())

    def create(self, op: int) -> asyncio.Future[Any]:
        """A future for the next answer to ``op``. Its waiter may cancel it; :meth:`discard` after it.

        Raises:
            RuntimeError: somebody waits for this operation already.
            Exception: what :meth:`close` was called with.
        """
        if self._closed is not None:
            raise copy.copy(self._closed)
        waiting = self._waiting
        held = waiting.get(op)
        if held is not None and not held.done():
            raise RuntimeError(f"operation {op} is waited for already")
        if len(waiting) >= self._sweep_at:
            self._sweep()
        future = waiting[op] = self._loop.create_future()
        return future

    def resolve(self, op: int, value: Any) -> bool:
        """Answer an operation; ``False`` when nobody waits."""
        future = self._take(op)
        if future is None:
            return False
        future.set_result(value)
        return True

    def fail(self, op: int, error: Exception) -> bool:
        """End an operation with an error; ``False`` when nobody waits."""
        future = self._take(op)
        if future is None:
            return False
        _set_error(future, error)
        return True

    def discard(self, op: int) -> None:
        """Nobody waits for ``op`` any more; a pending future of it is cancelled."""
        future = self._waiting.pop(op, None)
        if future is not None:
            future.cancel()
            self._remember(op, answered=False)

    def close(self, error: Exception) -> None:
        """End all that is waited for with ``error``, and whatever is created from now on."""
        self._closed = error
        waiting, self._waiting = self._waiting, {}
        for op, future in waiting.items():
            self._remember(op, answered=False)
            if not future.done():
                _set_error(future, copy.copy(error))

    def _take(self, op: int) -> asyncio.Future[Any] | None:
        future = self._waiting.pop(op, None)
        if future is not None:
            if not future.done():
                self._remember(op, answered=True)
                return future
            self.late += 1
            self._remember(op, answered=False)
            return None
        answered = self._past.get(op)
        if answered is None:
            self.unknown += 1
        elif answered:
            self.doubled += 1
        else:
            self.late += 1
        return None

    def _remember(self, op: int, *, answered: bool) -> None:
        self._past[op] = answered
        if len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)

    def _sweep(self) -> None:
        """Drop futures that their waiters cancelled without a word; amortized over creations."""
        for op in [op for op, future in self._waiting.items() if future.done()]:
            del self._waiting[op]
            self._remember(op, answered=False)
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._waiting))


def _set_error(future: asyncio.Future[Any], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # a waiter that has gone meanwhile is no mistake worth a log line
