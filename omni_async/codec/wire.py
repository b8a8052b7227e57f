"""The header's bytes: prelude, checksum, and the tags of what MessagePack has no word for.

In: trees of MessagePack's own types and :class:`Ext`. Out: bytes, and back.
Never: knows what a tag means.

A header is ``magic "OA", u16 version, u32 CRC-32 of the body, body``, little-endian, and the body
one MessagePack value. The checksum is there because a flipped bit inside a text or a shape would
otherwise decode to another value; it costs a quarter of a microsecond per kilobyte. MessagePack's own
timestamp, extension -1, is never written; in a forged header it is a datetime like any other.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from ..errors import DecodeError
from .limits import HEADER_LIMIT

VERSION = 1
"""Version of the payload format. Changes whenever an older reader would not understand."""

MAGIC = b"OA"
_PRELUDE = struct.Struct("<2sHI")

BUFFER = struct.Struct("<IQ")
"""A reference to a frame of plain bytes: index, length."""

Ext = msgspec.msgpack.Ext
encode_tree = msgspec.msgpack.Encoder().encode


class Tag:
    """Codes of MessagePack extensions. Numbers are never reused; MessagePack takes exact ints."""

    TENSOR = 1
    ARRAY = 2
    RAW = 3
    BYTES = 4
    BYTEARRAY = 5
    TEXT = 6
    SMALL_BYTEARRAY = 10
    SURROGATES = 11
    LONG_INT = 12
    COMPLEX = 13
    TUPLE = 20
    SET = 21
    FROZENSET = 22
    PAIRS = 23
    SLICE = 24
    DATETIME = 30
    DATE = 31
    TIME = 32
    TIMEDELTA = 33
    TIMEZONE = 34
    ZONE = 35
    TORCH_SIZE = 40
    TORCH_DTYPE = 41
    TORCH_DEVICE = 42
    NUMPY_SCALAR = 43
    NUMPY_TEXT = 44
    NUMPY_BYTES = 45
    IMAGE = 46
    REGISTERED = 50
    UNSET = 51


def seal(body: bytes) -> bytes:
    """The header that carries ``body``."""
    return _PRELUDE.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def unseal(header: bytes | bytearray | memoryview) -> memoryview:
    """The body of a header.

    Raises:
        DecodeError: not a header, of another version, or damaged.
    """
    view = memoryview(header)
    nbytes = view.nbytes
    if nbytes < _PRELUDE.size:
        raise DecodeError(f"a payload header has at least {_PRELUDE.size} bytes, this has {nbytes}")
    if nbytes > HEADER_LIMIT:
        raise DecodeError(f"a payload header of {nbytes} bytes exceeds the limit of {HEADER_LIMIT}")
    magic, version, checksum = _PRELUDE.unpack_from(view)
    if magic != MAGIC:
        raise DecodeError("these bytes are not a payload header of omni_async")
    if version != VERSION:
        raise DecodeError(f"the payload has format version {version}, this side reads {VERSION}")
    body = view[_PRELUDE.size :]
    if zlib.crc32(body) != checksum:
        raise DecodeError("the payload header is damaged: its checksum does not match")
    return body
