"""What the shapes of an engine's cache tensors tell of how they lie in memory.

In: torch tensors or numpy arrays, and what the caller knows of them. Out: form, order, numbers; refusals.
Never: touches a cache's bytes, imports torch.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import UsageError

Form = Literal["split", "stacked", "paired", "packed", "mla"]
Order = Literal["token_head", "head_token"]


class Facts(NamedTuple):
    """A layer's tensors: how many, the shape of each as it lies in memory, the dtype."""

    tensors: int
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        times = "a pair of " if self.tensors == 2 else ""
        return f"{times}{self.dtype}{list(self.shape)}"


def facts_of(cache: Any, layer: int) -> Facts:
    tensors = cache if isinstance(cache, (tuple, list)) else (cache,)
    if len(tensors) not in (1, 2):
        raise UsageError(f"layer {layer} has {len(tensors)} tensors; one or two are meant")
    seen = [(_as_it_lies(tensor, layer), _dtype(tensor)) for tensor in tensors]
    if seen[0] != seen[-1]:
        raise UsageError(f"keys and values of layer {layer} differ: {seen[0]} and {seen[1]}")
    return Facts(len(seen), *seen[0])


def _dtype(tensor: Any) -> str:
    if isinstance(tensor, np.ndarray):
        return str(tensor.dtype.name)
    return str(tensor.dtype).removeprefix("torch.")


def _as_it_lies(tensor: Any, layer: int) -> tuple[int, ...]:
    """The shape with its axes from the longest stride to the shortest, where there are no gaps."""
    shape = tuple(int(size) for size in tensor.shape)
    if isinstance(tensor, np.ndarray):
        strides = tuple(stride // tensor.itemsize for stride in tensor.strides)
    else:
        strides = tuple(int(stride) for stride in tensor.stride())
    if not math.prod(shape):
        raise UsageError(f"a cache tensor of layer {layer} is empty: shape {shape}")
    if _without_gaps(shape, strides):
        return shape
    axes = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    permuted = tuple(shape[axis] for axis in axes)
    if not _without_gaps(permuted, tuple(strides[axis] for axis in axes)):
        raise UsageError(
            f"a cache tensor of layer {layer} has gaps: shape {shape}, strides {strides}; "
            "its elements have to follow each other"
        )
    return permuted


def _without_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def form_of(facts: Facts, wanted: Form | None) -> Form:
    possible: list[Form] = []
    shape = facts.shape
    if facts.tensors == 2:
        if len(shape) == 4:
            possible.append("split")
    elif len(shape) == 5:
        if shape[0] == 2:
            possible.append("stacked")
        if shape[1] == 2:
            possible.append("paired")
    elif len(shape) == 4:
        possible.append("packed")
    elif len(shape) == 3:
        possible.append("mla")
    if not possible or wanted not in (None, *possible):
        raise UsageError(f"{facts} is no KV cache of {f'form {wanted}' if wanted else 'any form'}")
    if wanted is None and len(possible) > 1:
        raise UsageError(f"{facts} may be {' or '.join(possible)}: say which, by form")
    return wanted or possible[0]


def block_of(
    facts: Facts, heads: int | None, block_size: int | None, order: Order | None
) -> tuple[Order, int, int]:
    """Order, tokens and heads of a block."""
    outer, inner = facts.shape[-3:-1]
    readings: list[tuple[Order, int, int]] = [
        ("token_head", outer, inner),
        ("head_token", inner, outer),
    ]
    fitting = [
        reading
        for reading in readings
        if order in (None, reading[0])
        and block_size in (None, reading[1])
        and heads in (None, reading[2])
    ]
    if not fitting:
        raise UsageError(
            f"{facts} has no blocks of {block_size or 'any'} tokens and {heads or 'any'} heads"
            f" in the order {order or 'token_head or head_token'}"
        )
    if len(fitting) > 1 and (outer, inner) != (1, 1):
        raise UsageError(
            f"{facts} may be in the order token_head or head_token: say which, by order, "
            "or give kv_heads or block_size"
        )
    return fitting[0]
