"""Producers and consumers of KV caches whose every element is known, here or in a process that a test leads.

In: layouts, blocks, a seed. Out: caches filled by it, and what is wrong in the blocks that came from another.
Never: uses the plans of the package; looks at blocks before it was told that they are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.layout import KVLayout
from omni_async.kv.memory import KVMemory
from omni_async.kv.producer import KVProducer
from omni_async.testing.sides import LocalSide
from tests.kv.caches import canonical

torch = pytest.importorskip("torch")

GARBAGE = 255
"""What blocks hold that nobody has sent anything to. No element of a cache that is sent is so."""

SMALL: dict[str, Any] = {
    "layers": 3,
    "num_blocks": 24,
    "block_size": 4,
    "kv_heads": 4,
    "head_size": 16,
    "dtype": "uint8",
}


def layout(**changes: Any) -> KVLayout:
    return KVLayout(**{**SMALL, **changes})


def elements(
    seed: int, layer: int, part: int, blocks: np.ndarray, tokens: np.ndarray, of: KVLayout
) -> np.ndarray:
    """What tokens of blocks hold, ``[token, head, element]``: the same whoever works it out."""
    heads = np.asarray(of.head_range)
    base = seed * 7 + layer * 31 + part * 101 + blocks * 13 + tokens * 5
    inner = heads[:, None] * 17 + np.arange(of.head_size)[None, :]
    found: np.ndarray = ((base[:, None, None] + inner) % 251).astype(np.uint8)
    return found


class Node:
    """The caches of one rank, and how to read them."""

    def __init__(self, of: KVLayout, *, shared: bool = True) -> None:
        self.layout = of
        self.memory = KVMemory(of) if shared else None
        if self.memory is not None:
            self.tensors = self.memory.caches
        else:
            made = [
                tuple(torch.zeros(s, dtype=torch.uint8) for s in of.shapes)
                for _ in range(of.layers)
            ]
            self.tensors = [layer if len(layer) == 2 else layer[0] for layer in made]
        self.end: Any = None

    @property
    def caches(self) -> Any:
        return self.tensors if self.memory is None else self.memory

    def views(self, layer: int) -> list[np.ndarray]:
        found = self.tensors[layer]
        return [tensor.numpy() for tensor in (found if isinstance(found, tuple) else (found,))]

    def fill(self, seed: int, blocks: Sequence[int] | None = None) -> None:
        """Every element of these blocks, or of all."""
        of = self.layout
        tokens = np.arange(of.block_size)
        for layer in range(of.layers):
            for block in range(of.num_blocks) if blocks is None else blocks:
                for part in range(of.parts):
                    where = np.full(of.block_size, block)
                    self._put(layer, part, block, elements(seed, layer, part, where, tokens, of))

    def spoil(self) -> None:
        for layer in range(self.layout.layers):
            for tensor in self.views(layer):
                tensor[:] = GARBAGE

    def _put(self, layer: int, part: int, block: int, value: np.ndarray) -> None:
        of, views = self.layout, self.views(layer)
        lying = value.swapaxes(0, 1) if of.order == "head_token" else value
        if of.form == "mla":
            views[0][block] = value[:, 0]
        elif of.form == "split":
            views[part][block] = lying
        elif of.form == "stacked":
            views[0][part, block] = lying
        elif of.form == "paired":
            views[0][block, part] = lying
        else:
            half = of.head_size
            views[0][block][..., part * half : (part + 1) * half] = lying

    def wrong(
        self,
        seed: int,
        blocks: Sequence[int],
        source: KVLayout,
        source_blocks: Sequence[int],
        tokens: int | None = None,
        layers: Sequence[int] | None = None,
    ) -> list[str]:
        """Which tokens in these blocks are not those of the source; the first few, in words."""
        of, found = self.layout, []
        count = len(source_blocks) * source.block_size if tokens is None else tokens
        at = np.arange(count)
        theirs = np.asarray(source_blocks)[at // source.block_size]
        ours = np.asarray(blocks)[at // of.block_size]
        for layer in range(of.layers) if layers is None else layers:
            cells = canonical(of, self.views(layer))
            for part in range(of.parts):
                wanted = elements(seed, layer, part, theirs, at % source.block_size, of)
                same = (cells[part, ours, at % of.block_size] == wanted).all(axis=(1, 2))
                found += [
                    f"layer {layer}, part {part}, token {token} in block {ours[token]}"
                    for token in np.flatnonzero(~same)[:3]
                ]
        return found

    def touched(self, but: Sequence[int]) -> list[int]:
        """Blocks, but these, that do not hold garbage alone any more."""
        rest = set()
        for layer in range(self.layout.layers):
            cells = canonical(self.layout, self.views(layer))
            for block in range(self.layout.num_blocks):
                if block not in but and not (cells[:, block] == GARBAGE).all():
                    rest.add(block)
        return sorted(rest)


# --- in a process that is led ---------------------------------------------------------------------

NODES: dict[str, Node] = {}


async def open_producer(
    side: LocalSide, name: str, of: dict[str, Any], seed: int, shared: bool = True, **options: Any
) -> int:
    """A producer over a transport, its caches filled; its process id."""
    import os

    node = NODES[name] = Node(layout(**of), shared=shared)
    node.fill(seed)
    node.end = await KVProducer(side.transport, node.layout, node.caches, **options).__aenter__()
    return os.getpid()


async def open_consumer(
    side: LocalSide, name: str, of: dict[str, Any], shared: bool = True, **options: Any
) -> None:
    node = NODES[name] = Node(layout(**of), shared=shared)
    node.spoil()
    node.end = await KVConsumer(side.transport, node.layout, node.caches, **options).__aenter__()


async def close(name: str) -> None:
    await NODES.pop(name).end.aclose()


async def give(
    name: str, request_id: str, blocks: list[int], mode: str = "write", tokens: int | None = None
) -> str:
    """One request from its begin to its end: ``delivered``, or the error's name and text."""
    node = NODES[name]
    try:
        await give_here(node, request_id, blocks, mode, tokens)
    except omni_async.OmniAsyncError as error:
        return f"{type(error).__name__}: {error}"
    return "delivered"


async def give_here(
    node: Node, request_id: str, blocks: list[int], mode: str, tokens: int | None = None
) -> None:
    if mode == "read":
        session = await node.end.offer(request_id, blocks, tokens=tokens)
    else:
        session = await node.end.write_to(request_id, blocks, tokens=tokens)
        for layer in range(node.layout.layers):
            session.layer_ready(layer)
        await session.seal()
    await session.delivered()


async def take(
    name: str,
    request_id: str,
    blocks: list[int],
    mode: str,
    seed: int,
    of: dict[str, Any],
    source_blocks: list[int],
    tokens: int | None = None,
    **options: Any,
) -> list[str]:
    """One request; what is wrong with it, or the error's name and text."""
    node = NODES[name]
    progress = await node.end.receive(request_id, blocks, mode=mode, **options)
    try:
        await progress.all()
    except omni_async.OmniAsyncError as error:
        return [f"{type(error).__name__}: {error}"]
    return node.wrong(seed, blocks, layout(**of), source_blocks, tokens)
