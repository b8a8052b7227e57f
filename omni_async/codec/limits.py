"""What a payload may be at most, and why.

In: nothing. Out: constants.
Never: depends on a peer; both sides of one release have the same limits.
"""

from __future__ import annotations

from typing import Final

DEPTH_LIMIT: Final = 100
"""Levels a value may nest. Real payloads have fewer than ten; a hundred levels of nested tuples stay
well inside the interpreter's recursion limit of 1,000 on the receiving side, which is also where a
forged header with more levels of plain lists ends."""

FRAME_LIMIT: Final = 1 << 16
"""Buffers of one payload. Each costs a line in the offer and up to 63 bytes of padding."""

HEADER_LIMIT: Final = 64 << 20
"""Bytes of a header. Every node takes at least one byte of it, so this bounds the number of nodes as
well, and one byte never becomes more than about 80 bytes of Python objects. Bulk travels in frames."""

INLINE_BYTES: Final = 4096
"""Longest ``bytes`` inside the header. Longer ones are frames, whose bytes are copied once instead of
three times; measured, a frame begins to pay between 4 and 8 KiB."""

BULK_BYTES: Final = 1 << 20
"""A packed body longer than this is searched for long texts."""

LONG_TEXT: Final = 64 << 10
"""Characters from which a text found by that search becomes a frame."""

DIMENSION_LIMIT: Final = 64
"""Dimensions of an array or tensor: numpy's own limit (32 at a receiver with numpy 1)."""
