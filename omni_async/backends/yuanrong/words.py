"""Words between this process and the client's process, and their way through a socket.

In: words. Out: bytes; and back.
Never: touches a socket, imports more than the client's process needs.

A frame is a 4-byte little-endian length and one word. A :class:`Map` is alone in its ``sendmsg``, which
carries its descriptor: descriptors and the words that name them arrive in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

MODULE = "omni_async.backends.yuanrong.client_process"
"""What the client's process runs."""

_LENGTH = struct.Struct("<I")


class _Word(msgspec.Struct, tag=True, array_like=True, frozen=True):
    pass


# -- to the client's process -------------------------------------------------------------------------


class Connect(_Word, frozen=True):
    """The first word: which worker, and how. Answered by :class:`Done` or :class:`Failed`, each with id 0."""

    host: str
    port: int
    req_timeout_ms: int
    evictable: bool
    deadline: float
    """Of the kernel's monotonic clock, as all deadlines here: that one is the same in both processes."""


class Map(_Word, frozen=True):
    """Memory of the pool, by its address there. One descriptor comes along. Not answered."""

    address: int
    nbytes: int


class Unmap(_Word, frozen=True):
    """That memory is used no more. Not answered."""

    address: int


class Put(_Word, frozen=True):
    """Answered by :class:`Done` with 0."""

    id: int
    name: str
    pieces: list[tuple[int, int]]
    """Address in the pool's process, bytes."""
    ttl: int
    """Seconds; 0 is for ever."""
    deadline: float


class Get(_Word, frozen=True):
    """Answered by :class:`Done` with the bytes of the object, -1 where there is none."""

    id: int
    name: str
    address: int
    room: int
    deadline: float


class Contains(_Word, frozen=True):
    """Answered by :class:`Told`."""

    id: int
    names: list[str]


class Delete(_Word, frozen=True):
    """Answered by :class:`Told`: who stays."""

    id: int
    names: list[str]


# -- from the client's process -----------------------------------------------------------------------


class Done(_Word, frozen=True):
    id: int
    number: int = 0


class Told(_Word, frozen=True):
    """One byte for each name, 0 or 1."""

    id: int
    answers: bytes


class Failed(_Word, frozen=True):
    """``kind``: ``full`` and ``large`` with two sizes; ``silent``: no worker answers; ``missing``: no vendor's
    package; ``fault``: anything else."""

    id: int
    kind: str
    text: str
    status: str = ""
    nbytes: int = 0
    limit: int = 0


Call = Put | Get | Contains | Delete
Question = Connect | Map | Unmap | Put | Get | Contains | Delete
Answer = Done | Told | Failed

_encode_into = msgspec.msgpack.Encoder().encode_into
questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def framed(word: Question | Answer) -> bytearray:
    """One frame."""
    frame = bytearray(_LENGTH.size)
    _encode_into(word, frame, _LENGTH.size)
    _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
    return frame


class Frames:
    """Cuts a stream into the bodies of its frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now that ``data`` has come."""
        held = self._held
        held += data
        start = 0
        while len(held) - start >= _LENGTH.size:
            (nbytes,) = _LENGTH.unpack_from(held, start)
            end = start + _LENGTH.size + nbytes
            if end > len(held):
                break
            yield bytes(held[start + _LENGTH.size : end])
            start = end
        del held[:start]
