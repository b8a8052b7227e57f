"""From bytes that a sender of vLLM-Omni has written to a value.

In: a slot of our own pool with the payload in it. Out: a Delivery over views of that slot, or over a copy.
Never: consults the sender; spoils a payload that nobody gets.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..._aio.copying import INLINE_COPY
from ...codec.tensors import load_torch, tensor_over
from ...errors import ClosedError, DecodeError
from ...interop.vllm_omni import words
from ...interop.vllm_omni.reading import Moves, begin, read
from ...pool import Hold, Lease, ManagedBuffer
from ..delivery import Delivery
from ..room import Array, Room
from ..wiring import Wiring

PADDING = b"\xc1" * 4
"""What is behind an object before it lands, so that there is room for what a transport may put in front
of it. MessagePack never has such a byte: what was not written is not taken for something."""


def room_for(info: words.Info) -> int:
    """Bytes of a landing slot."""
    return info.data_size if info.is_fast_path else info.data_size + len(PADDING)


def prepare(lease: Lease, info: words.Info) -> None:
    """Make a slot ready for being written into."""
    if not info.is_fast_path:
        lease.view()[info.data_size :] = PADDING


async def take(
    wiring: Wiring,
    key: str,
    lease: Lease,
    info: words.Info,
    *,
    raw: bool,
    copy: bool | None,
    device: Any,
) -> Delivery:
    """The payload of a slot, which has one holder more for as long as something shows it.

    Whatever goes wrong but the payload itself, the slot is left as it was.

    Cancellation: ends when work under way has ended.
    """
    lease.hold()
    slot = np.asarray(Hold(lease.address, room_for(info), lease.drop, wiring.drops, lease.keep))
    moves = Moves()
    work = (slot, info, raw, bool(copy), device, moves)
    large = info.data_size > INLINE_COPY
    try:
        if large and (copy or device is not None or not info.is_fast_path):
            value = await wiring.executor.finish(_value, *work)
        else:
            value = _value(*work)
    except (ClosedError, DecodeError):  # nobody will get it any more
        raise
    except BaseException:
        if large:
            with contextlib.suppress(ClosedError):
                await wiring.executor.finish(moves.undo)
        else:
            moves.undo()
        raise
    return Delivery(value, info.data_size, key, None if copy else slot)


class _Wishes:
    """For raw bytes: one view of the slot, on a device if need be."""

    copy = False

    def __init__(self, device: Any) -> None:
        self.device = device


def _value(slot: Array, info: words.Info, raw: bool, copy: bool, device: Any, moves: Moves) -> Any:
    nbytes = info.data_size
    if not raw and not info.is_fast_path:
        return read(slot, nbytes, copy=copy, device=device, moves=moves)
    start = 0 if info.is_fast_path else begin(slot, nbytes)
    data = slot[start : start + nbytes]
    if copy:
        block, at = Room().copy(data.data)
        data = block[at : at + nbytes]
    if raw:
        return ManagedBuffer(data)
    try:
        torch = load_torch()
    except DecodeError:  # without it, they are bytes of numpy
        return data
    return tensor_over(torch, _Wishes(device), data, data.shape, data.dtype, None)
