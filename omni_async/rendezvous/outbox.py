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

_BLOCK = 64 << 10
"""Bytes after which the next word begins a new block: a long buffer is moved whenever it grows."""
_KEPT_SCRATCH = 64 << 10
_NO_HEADER = bytes(HEADER.size)


class _Block:
    """Frames that wait together, and descriptors that leave with the first byte of them."""

    __slots__ = ("data", "fds")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.fds: list[int] = []


class Outbox:
    """Frames for one non-blocking socket.

    A word with descriptors owns duplicates of them until it has been written: the caller may close
    its own as soon as :meth:`queue` has returned.
    """

    __slots__ = ("_blocks", "_limit", "_queued", "_scratch", "_sock", "_start")

    def __init__(self, sock: socket.socket, limit: int) -> None:
        self._sock = sock
        self._limit = limit
        self._scratch = bytearray()
        # Each word with descriptors begins a block, as it begins a sendmsg of its own.
        self._blocks: deque[_Block] = deque()
        self._start = 0  # bytes of the first block that have been written
        self._queued = 0

    def __len__(self) -> int:
        return self._queued

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
        if sent == len(scratch):
            return True
        self._scratch = bytearray()
        self._blocks.append(_Block(scratch))
        self._start = sent
        self._queued = len(scratch) - sent
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
        blocks = self._blocks
        fresh = not blocks or bool(fds) or len(blocks[-1].data) >= _BLOCK
        block = _Block(bytearray()) if fresh else blocks[-1]
        start = len(block.data)
        try:
            self._encode(message, block.data, start)
            if fds:
                block.fds = duplicates(fds)
        except BaseException:
            del block.data[start:]
            raise
        if fresh:
            blocks.append(block)
        self._queued += len(block.data) - start

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
        blocks = self._blocks
        try:
            while blocks:
                sent = self._write_some(blocks[0])
                self._queued -= sent
                self._start += sent
                if self._start == len(blocks[0].data):
                    blocks.popleft()
                    self._start = 0
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _write_some(self, block: _Block) -> int:
        with memoryview(block.data) as whole, whole[self._start :] as part:
            if not block.fds:
                return self._sock.send(part)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", block.fds))
            sent = self._sock.sendmsg([part], [rights])
        # The kernel ties descriptors to the first byte: they have left even if not all bytes have.
        close_fds(block.fds)
        block.fds = []
        return sent

    def rest(self) -> None:
        """Now and then: give back memory that only a large word needed."""
        if len(self._scratch) > _KEPT_SCRATCH:
            self._scratch = bytearray()

    def clear(self) -> None:
        """Forget what is queued and close the duplicates. Idempotent."""
        for block in self._blocks:
            close_fds(block.fds)
        self._blocks.clear()
        self._start = self._queued = 0
