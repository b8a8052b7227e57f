"""Words in messages: several words in one message, and out of it again.

In: words. Out: the bytes of messages, each at most one word longer than a block; and back.
Never: sends, splits a word over two messages.

A message is one word after another, each behind its length as on a stream. A message without bytes is
the end of a line: nothing follows it in this direction.
"""

from __future__ import annotations

from collections import deque

from ..errors import ProtocolError, UsageError
from .framing import HEADER, UNDECODABLE
from .messages import AnyMessage, Message, decode, encode_into

END = b""
"""The body that ends a line."""
_BLOCK = 64 << 10
"""Bytes after which the next word begins a new message."""
_KEPT_SCRATCH = 64 << 10
_NO_HEADER = bytes(HEADER.size)


def longest_message(limit: int) -> int:
    """Bytes of the longest message where ``limit`` is that of the longest word."""
    return limit + _BLOCK + 2 * HEADER.size


def pack_into(target: bytearray, start: int, message: Message, limit: int) -> None:
    """Put a word behind ``start``, and cut ``target`` off behind it.

    Raises:
        UsageError: it is longer than ``limit``; ``target`` ends at ``start`` then.
    """
    if len(target) < start + HEADER.size:
        target += _NO_HEADER
    encode_into(message, target, start + HEADER.size)
    length = len(target) - start - HEADER.size
    if length > limit:
        del target[start:]
        raise UsageError(f"{type(message).__name__} has {length} bytes, one word at most {limit}")
    HEADER.pack_into(target, start, length)


def packed(message: Message) -> bytes:
    """A message of one word, however long."""
    body = bytearray()
    pack_into(body, 0, message, 1 << 32)
    return bytes(body)


class Waiting:
    """Words that wait to be sent."""

    __slots__ = ("_blocks", "_limit", "_scratch", "nbytes")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._blocks: deque[bytearray] = deque()
        self._scratch = bytearray()
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def alone(self, message: Message) -> bytearray:
        """A message of one word, valid until the next one is made.

        Raises:
            UsageError: the word is too long.
        """
        pack_into(self._scratch, 0, message, self._limit)
        return self._scratch

    def add(self, message: Message) -> None:
        """Append a word.

        Raises:
            UsageError: the word is too long.
        """
        blocks = self._blocks
        fresh = not blocks or len(blocks[-1]) >= _BLOCK
        block = bytearray() if fresh else blocks[-1]
        start = len(block)
        pack_into(block, start, message, self._limit)
        if fresh:
            blocks.append(block)
        self.nbytes += len(block) - start

    @property
    def first(self) -> bytearray:
        """The message that is to be sent next."""
        return self._blocks[0]

    def sent(self) -> None:
        """:attr:`first` has been sent."""
        self.nbytes -= len(self._blocks.popleft())

    def rest(self) -> None:
        """Now and then: give back memory that only a large word needed."""
        if len(self._scratch) > _KEPT_SCRATCH:
            self._scratch = bytearray()

    def clear(self) -> None:
        """Forget what waits."""
        self._blocks.clear()
        self.nbytes = 0


class Words:
    """The words of one message, one after another."""

    __slots__ = ("_at", "_body", "_limit")

    def __init__(self, body: memoryview, limit: int) -> None:
        self._body = body
        self._limit = limit
        self._at = 0

    def next(self) -> memoryview | None:
        """The next word's bytes.

        Raises:
            ProtocolError: the message ends inside of it, or it is too long.
        """
        body, at = self._body, self._at
        left = len(body) - at - HEADER.size
        if left < 0:
            if left == -HEADER.size:
                return None
            raise ProtocolError("a message ends inside the length of a word")
        (length,) = HEADER.unpack_from(body, at)
        if length > self._limit:
            raise ProtocolError(f"a word of {length} bytes came, the limit is {self._limit}")
        if length > left:
            raise ProtocolError(f"a message ends {length - left} bytes before its word does")
        start = at + HEADER.size
        self._at = start + length
        return body[start : self._at]


def word(body: memoryview) -> AnyMessage:
    """One word from its bytes.

    Raises:
        ProtocolError: it is no word of this wire.
    """
    try:
        return decode(body)
    except UNDECODABLE as error:
        raise ProtocolError(f"{len(body)} bytes are not a word: {error}") from error
