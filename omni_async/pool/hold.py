"""Hold: memory that says when its last view has died, in whatever thread that happens.

In: an address and a token. Out: the token, once, on the event loop.
Never: takes a lock, calls anybody from a finalizer, does anything in a forked child.

A finalizer runs inside the garbage collector, in any thread, between any two instructions of
whatever that thread was doing. So it only appends to a deque, which is atomic, and rings an
eventfd; the loop does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["DropQueue", "Hold"]

_BATCH = 512
"""Tokens handled in one turn of the loop: about a millisecond."""


class _Bell:
    """An eventfd, closed when nobody refers to it: a thread that is ringing does."""

    __slots__ = ("_close", "fd")

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._close = os.close  # module globals may be gone at exit

    def __del__(self) -> None:
        self._close(self.fd)


def _nobody(token: Any) -> None:
    """Hears tokens after closing."""


class DropQueue:
    """Brings tokens from any thread to the event loop.

    Args:
        loop: runs ``on_drop``; the caller is on it.
        on_drop: called with each token, in the order of arrival.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_drop: Callable[[Any], None]) -> None:
        self._loop = loop
        self._on_drop = on_drop
        self._tokens: deque[Any] = deque()
        self._rung = False
        self._pid = os.getpid()
        self._getpid = os.getpid
        self._ring = os.eventfd_write
        self._bell: _Bell | None = _Bell()
        loop.add_reader(self._bell.fd, self._drain)

    def push(self, token: Any) -> None:
        """Hand over a token. From any thread, from a finalizer; in a forked child it does nothing.

        After :meth:`close` it does nothing either.
        """
        bell = self._bell  # this reference keeps the descriptor open until we have written
        if bell is None or self._getpid() != self._pid:
            return
        self._tokens.append(token)
        if not self._rung:
            self._rung = True
            self._ring(bell.fd, 1)

    def __len__(self) -> int:
        """Tokens that have not been handled yet."""
        return len(self._tokens)

    def drain(self) -> None:
        """Handle what has arrived now instead of in a later turn of the loop."""
        tokens = self._tokens
        while tokens:
            self._on_drop(tokens.popleft())

    def close(self) -> None:
        """Handle what has arrived and hear no more. On the loop's thread; idempotent."""
        bell, self._bell = self._bell, None
        if bell is None or self._getpid() != self._pid:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(bell.fd)
        on_drop, self._on_drop = self._on_drop, _nobody
        tokens = self._tokens
        while tokens:
            on_drop(tokens.popleft())

    def _drain(self) -> None:
        bell = self._bell
        if bell is None or self._getpid() != self._pid:
            return
        with contextlib.suppress(BlockingIOError):  # nothing else may go wrong on a live eventfd
            os.eventfd_read(bell.fd)
        # Lowered before looking: whoever appends from here on rings again.
        self._rung = False
        tokens = self._tokens
        try:
            for _ in range(_BATCH):
                if not tokens:
                    return
                self._on_drop(tokens.popleft())
        finally:
            if tokens and not self._rung and self._bell is bell:
                self._rung = True
                self._ring(bell.fd, 1)


class Hold:
    """``nbytes`` bytes at ``address`` for ``numpy.asarray``: a writable 1-D uint8 array.

    The array and every view made of it, torch's too, keep the hold alive. When the last is gone,
    ``token`` is pushed to ``queue``.

    Args:
        keep: whatever has to live as long as the memory is looked at, such as ``Lease.keep``.
    """

    __slots__ = ("__array_interface__", "_keep", "_queue", "_token")

    def __init__(
        self, address: int, nbytes: int, token: Any, queue: DropQueue, keep: object = None
    ) -> None:
        self._token = token
        self._queue = queue
        self._keep = keep
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, False),
        }

    def __del__(self) -> None:
        self._queue.push(self._token)
