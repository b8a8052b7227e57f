"""From an object in the pool to a value.

In: the bytes of an object. Out: the payload they are, as views of them.
Never: believes an object; deletes it.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ..._aio.copying import INLINE_COPY
from ...codec import decode
from ...errors import DecodeError
from ...interop.vllm_omni.reading import Moves, read
from ...pool import ManagedBuffer
from ..room import Array, Room
from ..taking import raw_bytes
from .head import unseal
from .landing import Landed
from .wiring import StoreWiring


class Opened(NamedTuple):
    value: Any
    nbytes: int
    hold: Any
    """What the delivery itself keeps."""
    consumers: int
    expires: float = 0.0
    """As :class:`Head` tells it."""
    moves: Moves | None = None
    """What reading has moved inside the object."""


async def opened(
    wiring: StoreWiring, landed: Landed, text: str, raw: bool, copy: bool | None, device: Any
) -> Opened | None:
    """The payload, or ``None``: it has expired.

    Raises:
        DecodeError, ProtocolError: it is none.

    Cancellation: ends when work under way has ended.
    """
    head, offsets = unseal(landed.array.data, text)
    if not head.sizes or (head.expires and head.expires <= time.time()):
        return None
    array = landed.array
    header = array[offsets[0] : offsets[0] + head.sizes[0]].data
    buffers = [array[at : at + size] for at, size in zip(offsets[1:], head.sizes[1:], strict=True)]
    if head.fast and len(buffers) != 1:
        raise DecodeError(
            f"what is kept under {text!r} announces one frame, and has {len(buffers)}"
        )
    copying = bool(copy)
    large = landed.nbytes > INLINE_COPY
    hold = None if copying else array
    value: Any
    if raw:
        joins = not head.fast and bool(buffers)
        work = (Room(), head.fast, header, buffers, [array], copying)
        if large and (copying or joins):
            value = await wiring.executor.finish(raw_bytes, *work)
        else:
            value = raw_bytes(*work)
        hold = None if copying or joins else array
    elif device is not None or (copying and large):
        value = await wiring.executor.finish(_decode, header, buffers, copying, device)
        hold = None
    else:
        value = decode(header, buffers, copy=copying)
    kept = hold if landed.lease is not None else None
    return Opened(value, head.nbytes, kept, head.consumers, head.expires)


def _decode(header: memoryview, buffers: list[Array], copying: bool, device: Any) -> Any:
    return decode(header, buffers, copy=copying, device=device)


async def opened_foreign(
    wiring: StoreWiring, landed: Landed, key: str, raw: bool, copy: bool | None, device: Any
) -> Opened:
    """An object that vLLM-Omni has put, or that was put for it.

    Raises:
        DecodeError: it is none.

    Cancellation: ends when work under way has ended.
    """
    array, moves = landed.array, Moves()
    value: Any
    if raw:
        data = array
        if copy:
            block, start = Room().copy(array.data)
            data = block[start : start + len(array)]
        value = ManagedBuffer(data)
    elif landed.nbytes > INLINE_COPY:  # its tensors are moved onto boundaries, all of its bytes
        value = await wiring.executor.finish(_read, array, bool(copy), device, moves)
    else:
        value = _read(array, bool(copy), device, moves)
    keeps = landed.lease is not None and not copy
    return Opened(value, landed.nbytes, array if keeps else None, 1, moves=moves)


def _read(array: Array, copy: bool, device: Any, moves: Moves) -> Any:
    return read(array, len(array), copy=copy, device=device, moves=moves)
