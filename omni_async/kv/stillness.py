"""Which transfers have not moved for too long.

In: word that something of one has moved. Out: a call for each in which nothing has until its time was over.
Never: makes a timer per movement; ends anything itself.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from .._aio.deadline import Deadlines

T = TypeVar("T")


class Stillness(Generic[T]):
    """One side's transfers.

    Args:
        due: when one is late, if it moved last at the time that is passed along; infinity for never.
        late: called with one that is.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        due: Callable[[T, float], float],
        late: Callable[[T], None],
    ) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._due = due
        self._late = late
        self._moved: dict[T, float] = {}
        self._watches: dict[T, tuple[float, int]] = {}
        """When it is looked at, and the token of that."""

    def __len__(self) -> int:
        return len(self._moved)

    def moved(self, one: T) -> None:
        """Something of it has moved, or it begins, or another limit holds from now on."""
        self._moved[one] = self._loop.time()
        self._watch(one)

    def forget(self, one: T) -> None:
        """It is over. Idempotent."""
        self._moved.pop(one, None)
        watch = self._watches.pop(one, None)
        if watch is not None:
            self._deadlines.discard(watch[1])

    def _watch(self, one: T) -> None:
        """Look at it when it is due; not later than that, and mostly not sooner."""
        known, due = self._watches.get(one), self._due(one, self._moved[one])
        if known is not None:
            if known[0] <= due < math.inf:
                return  # it is looked at before, and then again
            self._deadlines.discard(known[1])
            del self._watches[one]
        if due < math.inf:
            self._watches[one] = due, self._deadlines.add(due, partial(self._look_at, one))

    def _look_at(self, one: T) -> None:
        del self._watches[one]
        if self._due(one, self._moved[one]) > self._loop.time():
            self._watch(one)
        else:
            self._late(one)
