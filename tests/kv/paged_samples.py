"""Paged caches and what their requests' tokens are in them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

BLOCKS = 12
FORMS = ("pair", "stacked", "stacked by block", "packed")


def paged(
    form: str,
    *,
    layers: int = 3,
    block_size: int = 16,
    heads: int = 4,
    size: int = 8,
    dtype: Any = None,
    blocks: int = BLOCKS,
    seed: int = 0,
) -> list[Any]:
    """Caches with random bits, so that no two places are alike."""
    dtype = dtype or torch.bfloat16
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "pair": (2, blocks, block_size, heads, size),
        "stacked": (2, blocks, block_size, heads, size),
        "stacked by block": (blocks, 2, block_size, heads, size),
        "packed": (blocks, heads, block_size, 2 * size),
    }
    made: list[Any] = []
    for _ in range(layers):
        shape = shapes[form]
        raw = torch.randint(
            0,
            256,
            (*shape[:-1], shape[-1] * dtype.itemsize),
            dtype=torch.uint8,
            generator=generator,
        )
        cache = raw.view(dtype)
        made.append((cache[0].clone(), cache[1].clone()) if form == "pair" else cache)
    return made


def tokens_of(
    form: str, caches: list[Any], block_ids: list[int], tokens: int
) -> tuple[list[Any], list[Any]]:
    """Keys and values of the first tokens, one token after another: slow, and plainly right."""
    keys: list[Any] = []
    values: list[Any] = []
    for cache in caches:
        rows: tuple[list[Any], list[Any]] = ([], [])
        for token in range(tokens):
            for which in (0, 1):
                rows[which].append(_row(form, cache, which, block_ids, token))
        keys.append(torch.stack(rows[0]))
        values.append(torch.stack(rows[1]))
    return keys, values


def _row(form: str, cache: Any, which: int, block_ids: list[int], token: int) -> Any:
    if form == "packed":
        size = cache.shape[3] // 2
        block, at = block_ids[token // cache.shape[2]], token % cache.shape[2]
        return cache[block, :, at, which * size : (which + 1) * size]
    if form == "stacked by block":
        block, at = block_ids[token // cache.shape[2]], token % cache.shape[2]
        return cache[block, which, at]
    part = cache[which]
    return part[block_ids[token // part.shape[1]], token % part.shape[1]]


def same(one: Any, other: Any) -> bool:
    """The same bits; lists and tuples item by item."""
    if one is None or other is None:
        return one is other
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(
        one.contiguous().reshape(-1).view(torch.uint8),
        other.contiguous().reshape(-1).view(torch.uint8),
    )
