"""The caches of ``bench kv``: how they lie, which blocks a request has, what is in them.

In: numbers. Out: layouts, tables of blocks, caches that are filled, a check of what came.
Never: makes or compares anything while times are taken.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ...kv import KVLayout, KVMemory
from ...kv.shapes import Form
from .payload import Mismatch

if TYPE_CHECKING:
    import torch

LAYERS = 48
BLOCKS = 1024
"""Blocks of a request that is sent at once: 186 MB with all layers."""
LAYER_BLOCKS = 264
"""Blocks of a request that is sent layer by layer: 1 MB of each layer."""
RUN = 64
"""Blocks that follow each other where a table has runs."""

CONTIGUOUS, RUNS, SHUFFLED = TABLES = ("contiguous", "runs", "shuffled")

FORMS: dict[str, Form] = {"stacked": "stacked", "paired": "paired"}
"""Keys of all blocks and then their values, so that a run of blocks is two pieces; or those of a block together."""


def layout_of(
    blocks: int, form: str = "stacked", *, tp_size: int = 1, tp_rank: int = 0
) -> KVLayout:
    """Keys and values in one tensor a layer, 3,968 bytes a block with all heads.

    There are twice as many blocks as a request has, so that its blocks have others between them.
    """
    return KVLayout(
        layers=LAYERS,
        num_blocks=2 * max(blocks, LAYER_BLOCKS),
        block_size=8,
        kv_heads=2,
        head_size=62,
        dtype="float16",
        form=FORMS[form],
        tp_size=tp_size,
        tp_rank=tp_rank,
    )


def blocks_of(table: str, count: int, num_blocks: int, seed: int) -> list[int]:
    """The blocks of a request, in the order of its tokens; another seed for each side."""
    run = {CONTIGUOUS: count, RUNS: RUN, SHUFFLED: 1}[table]
    starts = list(range(0, num_blocks - run + 1, run))
    random.Random(f"{table} {seed}").shuffle(starts)
    return [block for start in starts for block in range(start, start + run)][:count]


def fill(memory: KVMemory) -> None:
    """So that neighbours differ: layers, keys and values, blocks, tokens, heads."""
    for layer, cache in enumerate(_views(memory)):
        cache.copy_(_content(memory.layout, layer))


def clear(memory: KVMemory) -> None:
    """So that what came before cannot pass for what comes next."""
    for cache in _views(memory):
        cache.zero_()


def check(memory: KVMemory, blocks: list[int], source_blocks: list[int]) -> None:
    """Whether all layers of these blocks hold what was filled in at the source, in those.

    Raises:
        Mismatch: they do not.
    """
    for layer, cache in enumerate(_views(memory)):
        wanted = _content(memory.layout, layer)[:, source_blocks]
        if not bool((cache[:, blocks] == wanted).all()):
            raise Mismatch(f"layer {layer} of the blocks that came differs")


def check_beginning(memory: KVMemory, nbytes: int) -> None:
    """Whether the layers that lie within the first bytes are those of a source that has the same layout.

    Raises:
        Mismatch: they are not.
    """
    ends = [*memory.offsets[1:], memory.nbytes]
    for layer, cache in enumerate(_views(memory)):
        if ends[layer] <= nbytes and not bool((cache == _content(memory.layout, layer)).all()):
            raise Mismatch(f"layer {layer} of what was written at once differs")


def _views(memory: KVMemory) -> list[torch.Tensor]:
    """``[2, blocks, tokens, heads, elements]`` of each layer, as whole numbers."""
    import torch

    caches: list[Any] = memory.caches
    views = [cache.view(torch.int16) for cache in caches]
    return [view.transpose(0, 1) for view in views] if memory.layout.form == "paired" else views


def _content(layout: KVLayout, layer: int) -> torch.Tensor:
    """The same in every process, for the heads of this rank; never 0. ``[2, blocks, tokens, heads, 1]``"""
    import torch

    heads = layout.head_range
    parts = torch.arange(2).reshape(2, 1, 1, 1)
    blocks = torch.arange(layout.num_blocks).reshape(1, -1, 1, 1)
    tokens = torch.arange(layout.block_size).reshape(1, 1, -1, 1)
    each = torch.arange(heads.start, heads.stop).reshape(1, 1, 1, -1)
    numbers = ((blocks * layout.block_size + tokens) * 2 + parts) * layout.kv_heads + each
    return ((numbers + layer * 7919) % 32749 + 1).to(torch.int16).unsqueeze(-1)
