"""decode: a header and its buffers become the value again.

In: bytes from another process, and one array per frame. Out: the value, or one ``DecodeError``.
Never: unpickles, imports a name it was sent, allocates by a length it was sent, copies a tensor unasked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DecodeError, UsageError
from . import arrays, containers, images, registered, scalars, tensors
from .reader import MALFORMED, Buffer, DeviceBuffer, Read, Reader
from .wire import unseal

_READERS: dict[int, Read] = {
    **containers.READERS,
    **scalars.READERS,
    **arrays.READERS,
    **tensors.READERS,
    **images.READERS,
    **registered.READERS,
}


def decode(
    header: bytes | bytearray | memoryview,
    buffers: Sequence[Buffer | DeviceBuffer],
    *,
    copy: bool = False,
    writable: bool = True,
    device: Any = None,
) -> Any:
    """Decode one value.

    Args:
        header: what :func:`encode` made.
        buffers: the bytes of each frame: uint8, one dimension, on a 64-byte boundary. Tensors and
            arrays are contiguous views that keep these arrays, and whatever their base is, alive. Buffers
            on a device become tensors there, and are copied to the host for anything else; that blocks.
        copy: give tensors and arrays memory of their own instead.
        writable: ``False`` marks views as read-only as far as that is possible: numpy knows such
            arrays, torch does not. A tensor over read-only memory can be read but must not be written.
        device: a torch device to put tensors on; blocks until they are there.

    Raises:
        DecodeError: header and buffers are not a payload, are damaged or of another version, or hold
            something that is not known here.
        UsageError: ``device`` cannot take a tensor.
    """
    reader = Reader(_READERS, buffers, copy, writable, device)
    try:
        value = reader.value(unseal(header))
    except UsageError:  # a ValueError, but not the payload's fault
        raise
    except RecursionError:
        raise DecodeError("the payload is nested too deeply") from None
    except MALFORMED as error:
        raise DecodeError(f"the payload is malformed ({type(error).__name__}: {error})") from error
    if reader.left:
        raise DecodeError(
            f"{reader.left} of {len(buffers)} frames belong to nothing in the payload"
        )
    return value
