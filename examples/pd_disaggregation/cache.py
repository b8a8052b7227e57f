"""The paged cache of one rank, and the blocks that its instance hands out.

In: a layout. Out: views of sequences in it; numbers of blocks, in the order in which they were asked for.
Never: copies a cache to send it; gives a block to two sequences.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from omni_async.kv.layout import KVLayout
from omni_async.kv.memory import KVMemory
from omni_async.kv.shapes import Form

from .model import Shape


def layout_of(
    shape: Shape,
    *,
    form: Form = "split",
    block_size: int = 16,
    num_blocks: int = 1024,
    tp_size: int = 1,
    tp_rank: int = 0,
) -> KVLayout:
    """How a rank's cache lies in memory. Prefill and decode may differ in all of these."""
    return KVLayout(
        layers=shape.layers,
        num_blocks=num_blocks,
        block_size=block_size,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        dtype="float64",
        form=form,
        tp_size=tp_size,
        tp_rank=tp_rank,
    )


class PagedCache:
    """Shared memory, so that whoever moves the bytes reaches the blocks themselves."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self.memory = KVMemory(layout)
        self._views = [_parted(layout, tensors) for tensors in self.memory.caches]

    def sequence(self, blocks: Sequence[int]) -> PagedSequence:
        """The tokens in these blocks."""
        return PagedSequence(self._views, self.layout.block_size, blocks)


class PagedSequence:
    """One sequence, as the model keeps it; see :class:`~.model.Keep`."""

    def __init__(
        self, views: Sequence[tuple[Tensor, Tensor]], block_size: int, blocks: Sequence[int]
    ) -> None:
        self._views = views
        self._block_size = block_size
        self._blocks = torch.tensor(blocks)

    def put(self, layer: int, at: int, keys: Tensor, values: Tensor) -> None:
        blocks, slots = self._places(at, at + len(keys))
        for view, value in zip(self._views[layer], (keys, values), strict=True):
            view[blocks, slots] = value

    def get(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        blocks, slots = self._places(0, count)
        keys, values = self._views[layer]
        return keys[blocks, slots], values[blocks, slots]

    def _places(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        tokens = torch.arange(start, end)
        return self._blocks[tokens // self._block_size], tokens % self._block_size


def _parted(layout: KVLayout, tensors: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Keys and values, ``[block, token, head, element]`` each."""
    if isinstance(tensors, tuple):
        return tensors
    if layout.form == "stacked":
        return tensors[0], tensors[1]
    if layout.form == "paired":
        return tensors[:, 0], tensors[:, 1]
    raise ValueError(f"this model does not read a cache that is {layout.form}")


class Blocks:
    """Free blocks, the same numbers on all ranks of an instance. First come, first served.

    What is free is given out again as late as possible: a write that came too late would be seen.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = deque(range(count))
        self._waiting: deque[tuple[int, asyncio.Future[list[int]]]] = deque()

    @property
    def free(self) -> int:
        return len(self._free)

    async def take(self, count: int) -> list[int]:
        """Wait for so many. Cancellation: safe; they are given back.

        Raises:
            ValueError: there will never be as many.
        """
        if count > self.count:
            raise ValueError(f"{count} blocks are needed, and there are {self.count}")
        ours: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, ours))
        self._serve()
        try:
            return await ours
        except asyncio.CancelledError:
            if ours.done() and not ours.cancelled():
                self.give(ours.result())
            ours.cancel()
            self._serve()
            raise

    def give(self, blocks: Sequence[int]) -> None:
        """These are not used any more."""
        self._free.extend(blocks)
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            count, future = self._waiting[0]
            if not future.done():
                if count > len(self._free):
                    return
                future.set_result([self._free.popleft() for _ in range(count)])
            self._waiting.popleft()
