"""Pools on a device: how a payload gets into a slot there, and out of it.

In: frames and a slot, or a slot that was written to. Out: bytes in place, or memory of the receiver's own.
Never: blocks the event loop, reaches a device's memory from the host, lets an engine see bytes that a stream
has yet to write.
"""

from __future__ import annotations

from typing import Any

from ..codec import Frame
from ..codec.frames import bytes_frame
from ..pool import Lease
from ..pool.device import DeviceArray, DeviceBlock
from .wiring import Wiring


async def fill(
    wiring: Wiring, lease: Lease, header: bytes, frames: list[Frame], offsets: list[int]
) -> None:
    """Copy header and frames into a slot, one after another.

    Cancellation: ends after what was begun has been copied.
    """
    await wiring.executor.finish(_fill, _block(lease), lease.view(), header, frames, offsets)


def _fill(
    block: DeviceBlock, slot: Any, header: bytes, frames: list[Frame], offsets: list[int]
) -> None:
    with block.copying():
        for frame, offset in zip([bytes_frame(header), *frames], offsets, strict=True):
            frame.copy_onto(slot[offset : offset + frame.nbytes])


async def lift(wiring: Wiring, lease: Lease, nbytes: int, head: int) -> DeviceArray:
    """What is in a slot, as memory of its own; the slot goes back.

    Work that a caller has queued for tensors in a slot could not be seen from here, so no tensor ever is.

    Args:
        head: how many of the first bytes are wanted on the host.

    Cancellation: ends after it was copied.
    """
    try:
        return await wiring.executor.finish(_block(lease).lift, lease.offset, nbytes, head)
    finally:
        lease.drop()


def fetched(buffers: list[Any]) -> list[Any]:
    """The same buffers on the host; blocks."""
    return [buffer.fetch() if isinstance(buffer, DeviceArray) else buffer for buffer in buffers]


def _block(lease: Lease) -> DeviceBlock:
    block = lease.segment.block
    assert isinstance(block, DeviceBlock)
    return block
