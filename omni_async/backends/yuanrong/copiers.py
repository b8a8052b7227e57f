"""Copiers: threads that copy while another one calls the vendor, which then has the GIL.

In: addresses that the caller vouches for. Out: the bytes in place, told through a descriptor.
Never: calls the vendor.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections import deque
from collections.abc import Sequence

STRIDE = 16 << 20
"""Bytes that a thread copies at a time."""
COPIERS = 2

# _aio.copying would bring asyncio into a process that has no use for it.
memmove = ctypes.CDLL(None).memmove
memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
memmove.restype = None

Copy = tuple[int, int, int]
"""Destination, source, bytes."""


class Copiers:
    """Threads that copy; who waits for them is told through a descriptor."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._work: queue.SimpleQueue[tuple[Copy, object]] = queue.SimpleQueue()
        self._done: deque[object] = deque()
        for _ in range(COPIERS):
            threading.Thread(target=self._run, daemon=True).start()

    def begin(self, copies: Sequence[Copy], token: object) -> int:
        """Copy; ``token`` will be among the :meth:`ended` as many times as is returned."""
        pieces = [
            (to + at, source + at, min(STRIDE, nbytes - at))
            for to, source, nbytes in copies
            for at in range(0, nbytes, STRIDE)
        ]
        for piece in pieces:
            self._work.put((piece, token))
        return len(pieces)

    def ended(self) -> list[object]:
        os.eventfd_read(self.fd)
        return [self._done.popleft() for _ in range(len(self._done))]

    def _run(self) -> None:
        while True:
            piece, token = self._work.get()
            memmove(*piece)
            self._done.append(token)
            os.eventfd_write(self.fd, 1)
