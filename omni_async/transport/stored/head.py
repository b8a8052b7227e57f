"""Head: what an object says of itself before its frames.

In: facts of a payload. Out: bytes in front of the frames, and back, checked.
Never: believes a length, reads a clock.

An object is ``OAS``, a version, the head's length (4 bytes, little-endian), the head as MessagePack, from the
next 64-byte boundary on the frames, each on such a boundary, and at its end the number of the head once more. A
store whose readers delete may write another object where one is being read: then the numbers at both ends differ.
"""

from __future__ import annotations

import struct

import msgspec

from ...errors import DecodeError, ProtocolError
from ...model import ALIGNMENT, aligned, packed

MAGIC = b"OAS"
VERSION = 1
_FIXED = struct.Struct("<3sBI")
_NUMBER = struct.Struct("<Q")
TAIL = ALIGNMENT
"""Bytes behind the frames."""
LONGEST = 1 << 20
"""Bytes; a head that claims more is none."""


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    text: str
    """The name in full, whatever the store had to make of it."""
    nbytes: int
    """Size of the payload, without alignment."""
    sizes: list[int]
    """Of the frames; the first is the codec's header. Without any the payload has expired."""
    fast: bool = False
    """The whole value is the second frame."""
    consumers: int = 1
    expires: float = 0.0
    """When, in seconds since 1970; 0 for never."""
    number: int = 0
    """Any number up to 64 bits that no other object is likely to have."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Head)


def seal(head: Head) -> bytes:
    """The bytes in front of the frames, up to a 64-byte boundary."""
    body = _encoder.encode(head)
    whole = _FIXED.pack(MAGIC, VERSION, len(body)) + body
    return whole.ljust(aligned(len(whole)), b"\0")


def tail(head: Head) -> bytes:
    """The bytes behind the frames."""
    return _NUMBER.pack(head.number).ljust(TAIL, b"\0")


class Replaced(Exception):
    """The object was replaced while it was read: what was read is neither the one nor the other."""


def unseal(data: memoryview, text: str) -> tuple[Head, list[int]]:
    """The head of an object, and where its frames begin.

    Args:
        data: the whole object.
        text: the name it was asked for by.

    Raises:
        DecodeError: it is no object of this library, or damaged.
        ProtocolError: it is of another version, or of another name.
        Replaced: it is two objects.
    """
    if len(data) < _FIXED.size or data[:3] != MAGIC:
        raise DecodeError(
            f"what is kept under {text!r} was not put by omni_async; where the other end is a stage of "
            "vLLM-Omni, say 'peer: vllm-omni'"
        )
    _, version, length = _FIXED.unpack_from(data)
    if version != VERSION:
        raise ProtocolError(f"what is kept under {text!r} has version {version}, not {VERSION}")
    start = aligned(_FIXED.size + length)
    if length > LONGEST or start > len(data):
        raise DecodeError(f"what is kept under {text!r} has no whole head")
    try:
        head = _decoder.decode(data[_FIXED.size : _FIXED.size + length])
    except msgspec.DecodeError as error:
        raise DecodeError(f"what is kept under {text!r} has a damaged head: {error}") from error
    if head.text != text:
        raise ProtocolError(f"what is kept under {text!r} was put as {head.text!r}")
    if min(head.sizes, default=0) < 0 or head.consumers < 1 or not head.expires >= 0:
        raise DecodeError(f"what is kept under {text!r} has a head that makes no sense: {head}")
    offsets, total = packed(head.sizes)
    whole = start + total + TAIL
    if whole != len(data):
        raise DecodeError(
            f"what is kept under {text!r} has {len(data)} bytes, its head announces {whole}"
        )
    if _NUMBER.unpack_from(data, start + total) != (head.number,):
        raise Replaced
    return head, [start + offset for offset in offsets]
