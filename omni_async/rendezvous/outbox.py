"""Outbox: words on their way into a socket that may not take them all at once.

In: words and descriptors. Out: frames, written in order by as few system calls as possible.
Never: blocks, loses what it accepted while the line stands, closes a caller's descriptor.
"""

from __future__ import annotations

import array
import socket
from collections import deque
from collections.abc import Sequence

from ..errors import UsageError
from .framing import HEADER, MAX_FDS, close_fds, duplicates, fds_of
from .messages import Message, encode_into

_KEPT_SCRATCH = 64 << 10
_NO_HEADER = bytes(HEADER.size)


class Outbox:
    """Frames for one non-blocking socket.

    A word with descriptors owns duplicates of them until it has been written: the caller may close
    its own as soon as :meth:`queue` has returned.
    """

    __slots__ = ("_limit", "_marks", "_queue", "_scratch", "_sock", "_written")

    def __init__(self, sock: socket.socket, limit: int) -> None:
        self._sock = sock
        self._limit = limit
        self._queue = bytearray()
        self._scratch = bytearray()
        self._written = 0
        # Where in the stream a frame with descriptors begins: each begins a sendmsg of its own.
        self._marks: deque[tuple[int, list[int]]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def now(self, message: Message) -> bool:
        """Write a word at once; only while nothing is queued. ``False``: the rest is queued.

        Raises:
            OSError: the line is broken.
        """
        scratch = self._scratch
        self._encode(message, scratch, 0)
        try:
            sent = self._sock.send(scratch)
        except (BlockingIOError, InterruptedError):
            sent = 0
        self._written += sent
        if sent == len(scratch):
            return True
        self._queue, self._scratch = scratch, self._queue
        del scratch[:sent]
        return False

    def queue(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Append a word, with duplicates of its descriptors.

        Raises:
            UsageError: the word is too long, or names another number of descriptors.
            OSError: a descriptor cannot be duplicated.
        """
        wanted = fds_of(message)
        if len(fds) != wanted:
            raise UsageError(f"the word names {wanted} descriptors, {len(fds)} were given")
        if wanted > MAX_FDS:
            raise UsageError(f"one word passes at most {MAX_FDS} descriptors, this one {wanted}")
        queue = self._queue
        start = len(queue)
        try:
            self._encode(message, queue, start)
            if fds:
                self._marks.append((self._written + start, duplicates(fds)))
        except BaseException:
            del queue[start:]
            raise

    def _encode(self, message: Message, target: bytearray, start: int) -> None:
        if len(target) < start + HEADER.size:
            target += _NO_HEADER
        encode_into(message, target, start + HEADER.size)
        length = len(target) - start - HEADER.size
        if length > self._limit:
            raise UsageError(
                f"{type(message).__name__} has {length} bytes, one word at most {self._limit}"
            )
        HEADER.pack_into(target, start, length)

    def write(self) -> bool:
        """Write what is queued as far as the socket takes it; ``True`` when nothing is left.

        Raises:
            OSError: the line is broken.
        """
        queue = self._queue
        try:
            while queue:
                sent = self._write_some() if self._marks else self._sock.send(queue)
                self._written += sent
                del queue[:sent]
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _write_some(self) -> int:
        """Up to the next frame with descriptors, or that frame and what follows it."""
        mark, fds = self._marks[0]
        distance = mark - self._written
        if distance:
            return self._send_part(distance, ())
        stop = self._marks[1][0] - self._written if len(self._marks) > 1 else len(self._queue)
        sent = self._send_part(stop, fds)
        # The kernel ties descriptors to the first byte: they have left even if not all bytes have.
        self._marks.popleft()
        close_fds(fds)
        return sent

    def _send_part(self, stop: int, fds: Sequence[int]) -> int:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with memoryview(self._queue) as whole, whole[:stop] as part:
            return self._sock.sendmsg([part], beside)

    def rest(self) -> None:
        """Now and then: give back memory that only a large word needed."""
        if len(self._scratch) > _KEPT_SCRATCH:
            self._scratch = bytearray()

    def clear(self) -> None:
        """Forget what is queued and close the duplicates. Idempotent."""
        self._queue.clear()
        while self._marks:
            close_fds(self._marks.popleft()[1])
