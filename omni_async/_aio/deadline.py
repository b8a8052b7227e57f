"""Deadline: time limits that can be combined, and waiting under one.

In: seconds as a caller passed them. Out: a point in time; a future's result or an error at that point.
Never: makes a task per wait, turns a cancellation into a time-out or the other way round.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

from ..errors import UsageError

T = TypeVar("T")


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


class Deadline:
    """A point of the monotonic clock, or never. Immutable."""

    __slots__ = ("when",)

    NEVER: ClassVar[Deadline]

    def __init__(self, when: float | None) -> None:
        self.when = when
        """Seconds of ``time.monotonic()``; ``None`` for never."""

    @classmethod
    def after(cls, timeout: object, what: str = "timeout") -> Deadline:
        """The deadline that ``timeout`` seconds from now make; see :func:`seconds`."""
        limit = seconds(timeout, what)
        return cls.NEVER if limit is None else cls(time.monotonic() + limit)

    def earlier(self, other: Deadline) -> Deadline:
        """The one that comes first."""
        if self.when is None:
            return other
        if other.when is None or self.when <= other.when:
            return self
        return other

    @property
    def remaining(self) -> float | None:
        """Seconds left, 0 when over; ``None`` for no limit."""
        return None if self.when is None else max(0.0, self.when - time.monotonic())

    @property
    def over(self) -> bool:
        """The point has passed."""
        return self.when is not None and time.monotonic() >= self.when

    def __repr__(self) -> str:
        left = self.remaining
        return "Deadline(never)" if left is None else f"Deadline(in {left:.3f} s)"


Deadline.NEVER = Deadline(None)


async def wait_until(
    future: asyncio.Future[T], deadline: Deadline, expired: Callable[[], BaseException]
) -> T:
    """The result of a future that belongs to this wait alone, unless the deadline comes first.

    A result that is there already is returned even when the deadline is over. On expiry the future
    itself gets the error: whoever completes it later finds it done. For a plain future, not a task.

    Args:
        future: what is waited for, completed by somebody else.
        deadline: until when.
        expired: makes the error of the expiry; called only then.

    Cancellation: safe; the future is cancelled with its waiter.
    """
    left = deadline.remaining
    if left is None or future.done():
        return await future
    if left <= 0:
        _expire(future, expired)
        return await future
    timer = future.get_loop().call_later(left, _expire, future, expired)
    try:
        return await future
    finally:
        timer.cancel()


def _expire(future: asyncio.Future[T], expired: Callable[[], BaseException]) -> None:
    if not future.done():
        future.set_exception(expired())
