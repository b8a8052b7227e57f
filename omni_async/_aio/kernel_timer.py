"""KernelTimer: wakes an event loop after microseconds.

In: seconds. Out: a call on the loop, once, when they are over.
Never: runs a thread, wakes anybody while it is not set.

asyncio's own timers are those of epoll, and uvloop's are those of libuv: both count milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable

if sys.version_info >= (3, 13):

    def _create() -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _set(fd: int, nanoseconds: int) -> None:
        os.timerfd_settime_ns(fd, initial=nanoseconds)

else:
    import ctypes

    class _Setting(ctypes.Structure):
        """The C library's ``itimerspec``: period and first expiry, each seconds and nanoseconds."""

        _fields_ = (
            ("every_s", ctypes.c_long),
            ("every_ns", ctypes.c_long),
            ("first_s", ctypes.c_long),
            ("first_ns", ctypes.c_long),
        )

    # PyDLL keeps the GIL: these calls are shorter than letting go of it.
    _libc = ctypes.PyDLL(None, use_errno=True)
    _libc.timerfd_create.argtypes = [ctypes.c_int, ctypes.c_int]
    _libc.timerfd_settime.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.POINTER(_Setting),
        ctypes.c_void_p,
    ]

    def _create() -> int:
        fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no timer: {os.strerror(number)}")
        return fd

    def _set(fd: int, nanoseconds: int) -> None:
        seconds, rest = divmod(nanoseconds, 1_000_000_000)
        _libc.timerfd_settime(fd, 0, _Setting(0, 0, seconds, rest), None)


class KernelTimer:
    """One timer of one loop. It can be set again before it has gone off; then only the last counts.

    Args:
        call: called on the loop.

    Raises:
        OSError: no descriptor is left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._fd = _create()
        self._loop = loop
        self._call = call
        loop.add_reader(self._fd, self._over)

    def set(self, seconds: float) -> None:
        """Go off after this long; at once for 0 or less."""
        _set(self._fd, max(1, int(seconds * 1e9)))

    def _over(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set again since the loop was woken
            return
        self._call()

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A loop that was closed under an operation has let go of its readers, and nobody closes this.
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
            self._fd = -1
