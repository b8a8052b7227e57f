"""What a test says to a transport in another process, and what comes back.

In: structs. Out: length-prefixed MessagePack on a socket.
Never: pickles; carries a payload's bytes (recipes travel instead).
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from .. import errors

_LENGTH = struct.Struct("<I")


class Order(msgspec.Struct):
    """Call ``do`` of the side called ``name``, or of the process itself when that is empty."""

    id: int
    do: str
    name: str = ""
    arguments: dict[str, Any] = {}


class ErrorWord(msgspec.Struct):
    """An exception's class, text and plain fields."""

    kind: str
    text: str
    fields: dict[str, Any] = {}

    def error(self) -> BaseException:
        """The library's error as it was raised there; anything else as :class:`PeerError`."""
        kind = getattr(errors, self.kind, None)
        if kind is None:
            return PeerError(f"{self.kind} in the peer process: {self.text}")
        fields = dict(self.fields)
        if fields.get("edge") is not None:
            fields["edge"] = tuple(fields["edge"])
        error: BaseException = kind.__new__(kind)
        error.args = (self.text,)
        error.__dict__.update(fields)
        return error


class Answer(msgspec.Struct):
    """The end of an order: a plain result, or an error."""

    id: int
    result: Any = None
    error: ErrorWord | None = None


class PeerError(Exception):
    """Something that is no error of the library was raised in the peer process."""


class PeerGone(Exception):
    """The peer process has ended: an order can have had any effect."""


def error_word(error: BaseException, text: str | None = None) -> ErrorWord:
    """An error as it travels; fields that are not plain are left out."""
    fields = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(error).items()
        if value is None or isinstance(value, (str, int, float, tuple))
    }
    return ErrorWord(type(error).__name__, str(error) if text is None else text, fields)


def pack(word: Order | Answer) -> bytes:
    """A word with its length before it."""
    data = msgspec.msgpack.encode(word)
    return _LENGTH.pack(len(data)) + data


class Unpacker:
    """Bytes in, whole words out."""

    def __init__(self, kind: type[Any]) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        self._buffer += data
        words = []
        while len(self._buffer) >= _LENGTH.size:
            (nbytes,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + nbytes
            if len(self._buffer) < end:
                break
            words.append(self._decoder.decode(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return words
