"""A transformer small enough to read: grouped heads, rotary positions, greedy tokens.

In: tokens, a place to keep keys and values. Out: the next token, and how sure it is.
Never: splits a sum among ranks.

Weights come from a seed, so that every process has the same. Ranks share the heads of attention. What their
heads have found is gathered before the output product, and all the rest is computed by each rank. No sum is ever
split, and in float64 what remains is far below what could change a token: products of one row or one head may
differ from those of many in the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

DTYPE = torch.float64


class Shape(NamedTuple):
    """Sizes of a model."""

    layers: int = 4
    width: int = 64
    heads: int = 8
    """Of queries; each key and value serves an equal share of them."""
    kv_heads: int = 4
    head_size: int = 16
    vocabulary: int = 256
    seed: int = 7


class Said(NamedTuple):
    """One token."""

    token: int
    logprob: float
    margin: float
    """By how much its logit is above that of the next best."""


class Keep(Protocol):
    """Where keys and values of one sequence are kept, ``[token, kv head, element]``."""

    def put(self, layer: int, at: int, keys: Tensor, values: Tensor) -> None:
        """Those of the tokens from ``at`` on."""
        ...

    def get(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """Those of the first ``count`` tokens."""
        ...


class Model:
    """One rank's share of it. Its methods block; they run in a thread of their own.

    Args:
        gather: what a rank's heads have found → what all heads have, in their order; alone, the same.
    """

    def __init__(
        self,
        shape: Shape = Shape(),  # noqa: B008 - it is immutable
        *,
        tp_rank: int = 0,
        tp_size: int = 1,
        gather: Callable[[Tensor], Tensor] = lambda found: found,
    ) -> None:
        if shape.kv_heads % tp_size:
            raise ValueError(f"{shape.kv_heads} heads cannot be shared by {tp_size} ranks")
        self.shape = shape
        self._gather = gather
        random = torch.Generator().manual_seed(shape.seed)

        def weights(*sizes: int) -> Tensor:
            made = torch.randn(*sizes, generator=random, dtype=DTYPE)
            return made / math.sqrt(sizes[-2])

        def own(all_heads: Tensor) -> Tensor:
            share = len(all_heads) // tp_size
            return all_heads[tp_rank * share : (tp_rank + 1) * share].clone()

        width, size = shape.width, shape.head_size
        self._embedding = torch.randn(shape.vocabulary, width, generator=random, dtype=DTYPE)
        self._head = weights(width, shape.vocabulary)
        self._layers = []
        for _ in range(shape.layers):
            query, key, value = (
                own(weights(count, width, size))
                for count in (shape.heads, shape.kv_heads, shape.kv_heads)
            )
            output = weights(shape.heads * size, width)
            up, down = weights(width, 4 * width), weights(4 * width, width)
            self._layers.append((query, key, value, output, up, down))

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        at: int,
        keep: Keep,
        layer_done: Callable[[int], None] = lambda layer: None,
    ) -> Said:
        """Compute these tokens, the first of which is the ``at``-th; what follows the last of them.

        Args:
            layer_done: told of each layer as soon as its keys and values are kept.
        """
        positions = torch.arange(at, at + len(tokens))
        hidden = self._embedding[torch.tensor(tokens)]
        for layer, (query, key, value, output, up, down) in enumerate(self._layers):
            x = _normal(hidden)
            keys, values = _turned(x @ key, positions), x @ value
            keep.put(layer, at, keys.transpose(0, 1), values.transpose(0, 1))
            layer_done(layer)
            found = self._attend(_turned(x @ query, positions), positions, layer, keep)
            hidden = hidden + 2.0 * (self._gather(found).flatten(1) @ output)
            hidden = hidden + torch.nn.functional.silu(_normal(hidden) @ up) @ down
        logits = _normal(hidden[-1:])[0] @ self._head
        best = torch.topk(logits, 2)
        first, second = best.values.tolist()
        return Said(int(best.indices[0]), first - float(torch.logsumexp(logits, 0)), first - second)

    def _attend(self, queries: Tensor, positions: Tensor, layer: int, keep: Keep) -> Tensor:
        """Each query to all keys before it and its own; ``[token, head, element]``."""
        heads, count, size = queries.shape
        end = int(positions[-1]) + 1
        keys, values = (kept.transpose(0, 1) for kept in keep.get(layer, end))
        grouped = queries.view(len(keys), heads // len(keys), count, size)
        scores = grouped @ keys[:, None].transpose(-1, -2) * (2.0 / math.sqrt(size))
        later = torch.arange(end)[None, :] > positions[:, None]
        shares = torch.softmax(scores.masked_fill(later, -math.inf), -1)
        return (shares @ values[:, None]).reshape(heads, count, size).transpose(0, 1)


class Whole:
    """Keys and values one after the other, without blocks: for one process alone."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def put(self, layer: int, at: int, keys: Tensor, values: Tensor) -> None:
        if at:
            before = self._layers[layer]
            keys, values = torch.cat([before[0], keys]), torch.cat([before[1], values])
        self._layers[layer] = keys, values

    def get(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[layer]
        return keys[:count], values[:count]


def alone(model: Model, tokens: Sequence[int], count: int) -> list[Said]:
    """What one process says, with no cache that lasts from one token to the next: every token anew."""
    found: list[Said] = []
    for _ in range(count):
        found.append(model.forward([*tokens, *(said.token for said in found)], 0, Whole()))
    return found


def encode(text: str) -> list[int]:
    """Tokens are bytes."""
    return list(text.encode())


def decode(tokens: Sequence[int]) -> str:
    """Each byte as a character: nothing that a model says is wrong text."""
    return bytes(tokens).decode("latin-1")


def _normal(x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.mean(x * x, -1, keepdim=True) + 1e-6)


def _turned(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions over ``[head, token, element]``."""
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half, dtype=DTYPE) / half)
    angles = positions[:, None].to(DTYPE) * speeds[None, :]
    cos, sin = torch.cos(angles), torch.sin(angles)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)
