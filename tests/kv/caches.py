"""KV caches in numpy, filled and read by plain indexing: what layouts and plans are held against.

In: layouts. Out: the tensors of a layer, where each head's vector of a token lies, strategies.
Never: uses the strides or the arithmetic of the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from omni_async.kv.layout import KVLayout
from omni_async.kv.shapes import Form, Order

Array = npt.NDArray[Any]

FORMS: list[Form] = ["split", "stacked", "paired", "packed", "mla"]
ORDERS: list[Order] = ["token_head", "head_token"]
ANY_ORDER: list[Order | None] = [None, *ORDERS]
TPS = [1, 2, 4, 8]
ITEMS = {"uint8": np.uint8, "float16": np.uint16, "float32": np.uint32, "float64": np.uint64}


def tensors(layout: KVLayout, fill: int = 0) -> list[Array]:
    """The tensors of a layer, of whole numbers as large as the elements."""
    return [np.full(shape, fill, ITEMS[layout.dtype]) for shape in layout.shapes]


def addresses(layer: list[Array]) -> list[int]:
    return [tensor.ctypes.data for tensor in layer]


def canonical(layout: KVLayout, layer: list[Array]) -> Array:
    """A view, or a copy, of a layer as ``[part, block, token, head, element]``."""
    form, heads_first = layout.form, layout.order == "head_token"
    if form == "mla":
        return layer[0][None, :, :, None, :]
    if form == "split":
        parts = np.stack(layer)
    elif form == "stacked":
        parts = layer[0]
    elif form == "paired":
        parts = np.stack([layer[0][:, 0], layer[0][:, 1]])
    else:
        half = layer[0].shape[-1] // 2
        parts = np.stack([layer[0][..., :half], layer[0][..., half:]])
    return parts.swapaxes(2, 3) if heads_first else parts


def store(
    layout: KVLayout, layer: list[Array], at: tuple[int, int, int, int], value: Array
) -> None:
    """Put one head's vector of a token where an engine would."""
    part, block, token, head = at
    inner = (head, token) if layout.order == "head_token" else (token, head)
    if layout.form == "mla":
        layer[0][block, token] = value
    elif layout.form == "split":
        layer[part][block][inner] = value
    elif layout.form == "stacked":
        layer[0][part, block][inner] = value
    elif layout.form == "paired":
        layer[0][block, part][inner] = value
    else:
        size = layout.head_size
        layer[0][block][inner][part * size : (part + 1) * size] = value


def vectors(layout: KVLayout) -> Array:
    """``[part, block, token, head]``: which vector of the layer it is, as memory counts them."""
    tensors, first = [], 0
    for shape in layout.shapes:
        shape = (*shape[:-1], shape[-1] // layout.head_size)
        count = int(np.prod(shape))
        tensors.append(np.arange(first, first + count).reshape(shape))
        first += count
    return canonical(layout, tensors)[..., 0]


def mapping(
    source: KVLayout,
    source_blocks: list[int],
    target: KVLayout,
    target_blocks: list[int],
    tokens: int,
) -> Array:
    """For each byte of a target's layer the byte of the source's that goes there, or -1."""
    ours, theirs = vectors(source), vectors(target)
    out = np.full((target.layer_nbytes // target.head_nbytes, target.head_nbytes), -1)
    within = np.arange(source.head_nbytes)
    for head in sorted(set(source.head_range) & set(target.head_range)):
        for token in range(tokens):
            for part in range(source.parts):
                here = ours[
                    part,
                    source_blocks[token // source.block_size],
                    token % source.block_size,
                    head - source.head_range[0],
                ]
                there = theirs[
                    part,
                    target_blocks[token // target.block_size],
                    token % target.block_size,
                    head - target.head_range[0],
                ]
                out[there] = here * source.head_nbytes + within
    return out.ravel()


def maximal_runs(wanted: Array, source: KVLayout, target: KVLayout) -> int:
    """How many runs of bytes follow each other on both sides, within one tensor on each."""
    runs, last = 0, -1
    for there, here in enumerate(wanted.tolist()):
        begins = here != last + 1 or last < 0
        if source.form == "split" and here == source.layer_nbytes // 2:
            begins = True
        if target.form == "split" and there == target.layer_nbytes // 2:
            begins = True
        runs += here >= 0 and begins
        last = here
    return runs


class Case(NamedTuple):
    """A sequence in two caches."""

    source: KVLayout
    source_blocks: list[int]
    target: KVLayout
    target_blocks: list[int]
    tokens: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    mla = draw(st.integers(0, 5)) == 0
    kv_heads = 1 if mla else draw(st.sampled_from([1, 2, 4, 8, 16]))
    dtype = draw(st.sampled_from(sorted(ITEMS)))
    head_size = draw(st.integers(1, 3))
    alike = draw(st.integers(0, 3)) == 0
    common = (
        draw(st.integers(1, 8)),
        draw(st.sampled_from(ANY_ORDER)),
        draw(st.sampled_from(TPS)),
    )
    tokens = draw(st.integers(0, 3)) * common[0] if alike else draw(st.integers(0, 24))

    def one() -> tuple[KVLayout, list[int]]:
        block_size, order, tp_size = common
        if not alike:
            block_size = draw(st.integers(1, 8))
            order = draw(st.sampled_from(ANY_ORDER))
            tp_size = draw(st.sampled_from(TPS))
        needed = -(-tokens // block_size)
        # Of two caches that lie alike and are full all may be one run: that is where merging has to end.
        num_blocks = max(1, needed) + (0 if alike else draw(st.integers(0, 3)))
        table = list(draw(st.permutations(range(num_blocks)))[:needed])
        if alike or draw(st.booleans()):
            table.sort()
        return KVLayout(
            layers=2,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=kv_heads,
            head_size=head_size,
            dtype=dtype,
            form="mla" if mla else draw(st.sampled_from(FORMS[:-1])),
            order=order,
            tp_size=tp_size,
            tp_rank=draw(st.integers(0, tp_size - 1)),
        ), table

    return Case(*one(), *one(), tokens)
