"""Asking: when an operation that cannot tell of its end is asked about, and how whoever waits is told.

In: an operation's age; what came of it. Out: seconds to leave it alone; a future that is done.
Never: asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FIRST = 50e-6
"""Seconds an operation is left alone at least."""
SHARE = 1 / 8
"""Part of its age that an operation is left alone after it was asked about."""

Over = Callable[[], bool]
"""``True`` once the operation has ended; it is not called after that, nor after it has raised."""


def pause(age: float, longest: float) -> float:
    """Seconds until an operation of that age is asked about again."""
    return min(max(FIRST, age * SHARE), longest)


def settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    """Tell of an operation's end, unless nobody waits any more."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
