"""A pace that is kept to some microseconds on an event loop.

In: a rate. Out: one tick after the other.
Never: holds the loop up.

Event loops wait in whole milliseconds. At a thousand chunks per second they would send two at once every few
milliseconds, and the second of them would wait for the first: a latency of the benchmark's own.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from types import TracebackType

_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class Pace:
    """Ticks of the kernel's timer; those that a late caller has missed come at once."""

    def __init__(self, rate: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
        seconds, nanoseconds = divmod(round(1e9 / rate), 10**9)
        every = struct.pack("@llll", seconds, nanoseconds, seconds, nanoseconds)
        if self._fd < 0 or libc.timerfd_settime(self._fd, 0, every, None):
            error = OSError(ctypes.get_errno(), "the kernel gave no timer")
            if self._fd >= 0:
                os.close(self._fd)
            raise error
        self._due = 0
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._ticked)

    async def tick(self) -> None:
        """Wait for the next tick. Cancellation: safe."""
        while not self._due:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._due -= 1

    def _ticked(self) -> None:
        self._due += struct.unpack("@Q", os.read(self._fd, 8))[0]
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Pace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
