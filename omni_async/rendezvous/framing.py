"""Framing: words cut out of a stream of bytes, and the descriptors that came beside them.

In: what a socket delivered. Out: words, each with its own descriptors, or ``ProtocolError``.
Never: reads a socket, keeps a descriptor that no word claimed.

A frame is a 4-byte little-endian length and one word of :mod:`.messages`. A ``Regions`` word has one
descriptor for each of its regions with ``has_fd``. The sender lets such a word begin a ``sendmsg`` of
its own that carries the descriptors, and the kernel ends a ``recvmsg`` behind the bytes they came
with: descriptors and the words that name them arrive in the same order.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..errors import ProtocolError
from .messages import Message, Regions, decode

if TYPE_CHECKING:
    from .messages import AnyMessage

HEADER = struct.Struct("<I")

MAX_MESSAGE = 16 << 20
"""Bytes of the largest word that is sent or accepted."""

MAX_FDS = 253
"""Descriptors the kernel passes with one ``sendmsg``."""

_FIRST_BUFFER = 256 << 10
_LEAST_SPACE = 4 << 10

# What msgspec raises for foreign bytes; the second for arrays nested without end.
UNDECODABLE = (msgspec.DecodeError, RecursionError)


def fds_of(message: Message) -> int:
    """How many descriptors belong to a word."""
    if type(message) is Regions:
        return sum(1 for region in message.added if region.has_fd)
    return 0


def duplicates(fds: Sequence[int]) -> list[int]:
    """Duplicates of all descriptors, or none.

    Raises:
        OSError: one is not open, or this process may have no more.
    """
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))
    except OSError:
        close_fds(copies)
        raise
    return copies


def close_fds(fds: Iterable[int]) -> None:
    """Close descriptors this process owns."""
    for fd in fds:
        os.close(fd)


class FrameReader:
    """Receives into one buffer that is used again and again.

    Loop: ``space()`` is where to receive, ``took(n, fds)`` says what came, then ``next()`` until
    ``None``, then ``settle()``.
    """

    __slots__ = ("_buffer", "_end", "_fds", "_peak", "_start", "_view", "fds", "limit", "stray")

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        """Bytes of the largest word."""
        self._buffer = bytearray(_FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._peak = 0
        self._fds: deque[int] = deque()
        self.fds: list[int] = []
        """Descriptors of the word that :meth:`next` returned last; the caller takes them over."""
        self.stray = 0
        """Descriptors that no word named and that were closed."""

    @property
    def partial(self) -> int:
        """Bytes of a word that has not arrived whole."""
        return self._end - self._start

    def space(self) -> memoryview:
        """Where the next bytes go; at least some KiB."""
        if len(self._buffer) - self._end >= _LEAST_SPACE:
            return self._view[self._end :]
        held = self._end - self._start
        if self._start >= _LEAST_SPACE:
            self._view[:held] = self._view[self._start : self._end]
        else:
            # In steps, not the length a peer claims: memory is spent on bytes that really came.
            size = len(self._buffer)
            self._replace(max(2 * size, min(4 * size, self.limit + _FIRST_BUFFER)), held)
        self._start, self._end = 0, held
        return self._view[held:]

    def _replace(self, size: int, held: int) -> None:
        buffer = bytearray(size)
        buffer[:held] = self._view[self._start : self._end]
        self._view.release()
        self._buffer, self._view = buffer, memoryview(buffer)

    def took(self, nbytes: int, fds: Iterable[int] = ()) -> None:
        """``nbytes`` were written to :meth:`space`; ``fds`` came with them and are owned here now.

        Raises:
            ProtocolError: more descriptors than the words so far can name.
        """
        self._end += nbytes
        if self._end > self._peak:
            self._peak = self._end
        if fds:
            self._fds.extend(fds)
            if len(self._fds) > MAX_FDS:
                raise ProtocolError(f"more than {MAX_FDS} descriptors came without a word for them")

    def body(self) -> memoryview | None:
        """The next whole frame's bytes, valid until :meth:`space` is called; ``None`` for more.

        Raises:
            ProtocolError: the frame is longer than the limit.
        """
        start = self._start + 4
        if start > self._end:
            return None
        (length,) = HEADER.unpack_from(self._buffer, self._start)
        stop = start + length
        if stop > self._end:
            if length > self.limit:
                raise ProtocolError(
                    f"a word of {length} bytes is announced, the limit is {self.limit}"
                )
            return None
        if length > self.limit:
            raise ProtocolError(f"a word of {length} bytes came, the limit is {self.limit}")
        self._start = stop
        return self._view[start:stop]

    def next(self) -> AnyMessage | None:
        """The next word, or ``None`` when more bytes are needed. Copies what the word keeps.

        Raises:
            ProtocolError: too long, not a word of this wire, or its descriptors are missing.
        """
        if self._start == self._end:
            return None
        body = self.body()
        if body is None:
            return None
        try:
            message = decode(body)
        except UNDECODABLE as error:
            raise ProtocolError(f"{len(body)} bytes are not a word: {error}") from error
        self.fds = self._claim(message) if type(message) is Regions else []
        return message

    def _claim(self, message: Regions) -> list[int]:
        wanted = fds_of(message)
        if wanted > len(self._fds):
            raise ProtocolError(
                f"{wanted} descriptors belong to a Regions word, {len(self._fds)} came"
            )
        return [self._fds.popleft() for _ in range(wanted)]

    def settle(self) -> None:
        """Every whole frame has been taken: close descriptors that nobody named."""
        if self._start != self._end:
            return
        self._start = self._end = 0
        if self._fds:
            self.stray += len(self._fds)
            self._drop()

    def rest(self) -> None:
        """Now and then: give back memory that no large word has needed since the last time."""
        if self._peak <= _FIRST_BUFFER < len(self._buffer) and not self.partial:
            self._replace(_FIRST_BUFFER, 0)
        self._peak = 0

    def _drop(self) -> None:
        while self._fds:
            os.close(self._fds.popleft())

    def close(self) -> None:
        """Close the descriptors that were not handed out. Idempotent."""
        self._drop()
