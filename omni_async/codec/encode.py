"""encode: a value becomes a header and a list of frames.

In: any tree of sendable values. Out: :class:`Encoded`; the frames still are the caller's memory.
Never: copies tensors, joins frames, calls pickle.
"""

from __future__ import annotations

from typing import Any

from ..errors import EncodeError
from .frames import Encoded
from .limits import FRAME_LIMIT, HEADER_LIMIT
from .table import ONE_FRAME, WHOLE, WRITERS, find
from .wire import seal
from .writer import UnsendableError, Writer


def encode(value: Any) -> Encoded:
    """Encode one value.

    Raises:
        EncodeError: something inside cannot be sent; ``path`` says where, the text what to do.
    """
    writer = Writer(WRITERS, find)
    kind = type(value)
    whole = WHOLE.get(kind)
    try:
        tree = writer.tree(value, 0) if whole is None else whole(writer, value, 0)
        header = seal(writer.pack(tree))
    except UnsendableError as refused:
        raise refused.error() from refused.__cause__
    except RecursionError:
        raise EncodeError(
            "value: is nested deeper than this thread's recursion limit allows", path="value"
        ) from None
    frames = writer.frames
    if len(header) > HEADER_LIMIT:
        raise EncodeError(
            f"value: everything outside of tensors, arrays and bytes takes {len(header)} bytes, the "
            f"limit is {HEADER_LIMIT}; send many numbers as a tensor or an array",
            path="value",
        )
    if len(frames) > FRAME_LIMIT:
        raise EncodeError(
            f"value: holds {len(frames)} tensors, arrays and long bytes, the limit is {FRAME_LIMIT}; "
            "join small ones, or send several payloads",
            path="value",
        )
    if kind in ONE_FRAME:
        return Encoded(header, frames, True, frames[0].nbytes)
    nbytes = len(header)
    for frame in frames:
        nbytes += frame.nbytes
    return Encoded(header, frames, False, nbytes)
