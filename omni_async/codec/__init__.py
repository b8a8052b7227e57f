"""codec: value <-> header and frames.

In: any tree of sendable values. Out: bytes and buffers that are never joined, and the value again.
Never: pickles, reaches asyncio, threads or the clock, imports torch to encode.
"""

from __future__ import annotations

from .decode import decode
from .encode import encode
from .frames import Encoded, Frame, RawBuffer
from .registered import register_type
from .table import register_buffer
from .wire import VERSION

__all__ = [
    "VERSION",
    "Encoded",
    "Frame",
    "RawBuffer",
    "decode",
    "encode",
    "register_buffer",
    "register_type",
]
