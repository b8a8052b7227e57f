"""Which bytes go where: from the blocks of one KV cache to those of another.

In: two layouts and the blocks that hold a sequence on each side. Out: the fewest moves that carry it.
Never: touches a cache's bytes, waits for anybody.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from .layout import KVLayout, match, shares
from .words import MOST_BLOCKS

Offsets = npt.NDArray[np.int64]

_NAMED = 5  # so many wrong blocks are named, the rest are counted


class KVMove(NamedTuple):
    """A run of bytes within a layer. Its tensors count as one after the other; no run spans two of them."""

    source: int
    """Offset in the source's layer, bytes."""
    target: int
    """Offset in the target's layer, bytes."""
    nbytes: int


class KVUnits(NamedTuple):
    """The part of a plan between one tensor and another, in pieces of one length."""

    nbytes: int
    """Of each piece; indices count in it."""
    source_tensor: int
    target_tensor: int
    source: Offsets
    """Index of each piece in its tensor."""
    target: Offsets
    buffer: Offsets | slice
    """Index in a buffer that has all pieces of the plan one after another."""


class KVPlan:
    """Moves of one layer, by ascending target, in arrays: the same for each layer.

    The order is also that of a buffer into which the pieces are gathered one after another.
    """

    def __init__(
        self,
        source: Offsets,
        target: Offsets,
        sizes: Offsets,
        source_tensors: tuple[int, ...],
        target_tensors: tuple[int, ...],
    ) -> None:
        self.source = source
        """Offset of each move in the source's layer, bytes."""
        self.target = target
        self.sizes = sizes
        """Bytes of each move."""
        self.source_tensors = source_tensors
        """Bytes of each tensor of a layer."""
        self.target_tensors = target_tensors
        self.nbytes = int(sizes.sum())
        """Of all moves together."""

    @classmethod
    def of(
        cls,
        source: KVLayout,
        source_blocks: Sequence[int],
        target: KVLayout,
        target_blocks: Sequence[int],
        *,
        tokens: int | None = None,
    ) -> KVPlan:
        """The fewest moves that carry a sequence; none where the ranks have no heads in common.

        Args:
            source: how the cache that has the sequence lies.
            source_blocks: its blocks, in the order of the tokens.
            target: how the cache that gets it lies.
            target_blocks: where it goes, in the order of the tokens.
            tokens: how many there are; the last block of each side may be filled in part, and what is behind
                them is not moved. ``None``: all blocks are full.

        Raises:
            ProtocolError: the two cannot hold the same cache.
            UsageError: blocks that do not exist, come twice in the target, or are not as many as the tokens
                need; names them.
        """
        match(source, target)
        here, there = (
            _blocks("source", source_blocks, source),
            _blocks("target", target_blocks, target),
        )
        _refuse(there, _doubled(there), "target", "come twice")
        count = _tokens(source, here, target, there, tokens)
        tensors = source.tensor_nbytes, target.tensor_nbytes
        runs = _runs(source, here, target, there, count)
        return cls(*_merged(*runs, *(_border(nbytes) for nbytes in tensors)), *tensors)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def piece_nbytes(self) -> float:
        """Bytes of a move on average: few mean that a buffer between the two is the faster way."""
        return self.nbytes / len(self) if len(self) else 0.0

    def moves(self) -> list[KVMove]:
        """The moves as values."""
        columns = zip(self.source.tolist(), self.target.tolist(), self.sizes.tolist(), strict=True)
        return list(map(KVMove._make, columns))

    def source_addresses(self, bases: Sequence[int]) -> Offsets:
        """Address of each move's first byte. ``bases`` are those of the layer's tensors."""
        return _addresses(self.source, self.source_tensors, bases)

    def target_addresses(self, bases: Sequence[int]) -> Offsets:
        """The same at the target."""
        return _addresses(self.target, self.target_tensors, bases)

    @functools.cached_property
    def units(self) -> list[KVUnits]:
        """The moves cut into pieces of one length, the longest that fits all; for copying by index."""
        borders = [*self.source_tensors, *self.target_tensors]
        unit = int(np.gcd.reduce(np.concatenate([self.source, self.target, self.sizes, borders])))
        counts = self.sizes // unit
        # Within a move units count up; between moves they jump.
        within = np.arange(self.nbytes // unit) - np.repeat(np.cumsum(counts) - counts, counts)
        source = np.repeat(self.source // unit, counts) + within
        target = np.repeat(self.target // unit, counts) + within
        from_second = source >= self.source_tensors[0] // unit
        to_second = target >= self.target_tensors[0] // unit
        out = []
        for ours, theirs in itertools.product((0, 1), (0, 1)):
            chosen = np.flatnonzero((from_second == ours) & (to_second == theirs))
            if len(chosen):
                out.append(
                    KVUnits(
                        unit,
                        ours,
                        theirs,
                        source[chosen] - ours * (self.source_tensors[0] // unit),
                        target[chosen] - theirs * (self.target_tensors[0] // unit),
                        _as_slice(chosen),
                    )
                )
        return out


def plan_moves(
    source: KVLayout,
    source_blocks: Sequence[int],
    target: KVLayout,
    target_blocks: Sequence[int],
    *,
    tokens: int | None = None,
) -> list[KVMove]:
    """The fewest moves that carry a sequence from its blocks to others; none where ranks have no heads in common.

    They are those of one layer: all layers are alike.

    Args:
        source: how the cache that has the sequence lies.
        source_blocks: its blocks, in the order of the tokens.
        target: how the cache that gets it lies.
        target_blocks: where it goes, in the order of the tokens.
        tokens: how many there are; the last block of each side may be filled in part, and what is behind them is
            not moved. ``None``: all blocks are full.

    Returns:
        By ascending target, in bytes.

    Raises:
        ProtocolError: the two cannot hold the same cache.
        UsageError: blocks that do not exist, come twice in the target, or are not as many as the tokens need;
            names them.
    """
    return KVPlan.of(source, source_blocks, target, target_blocks, tokens=tokens).moves()


def check_blocks(
    layout: KVLayout, blocks: Sequence[int], *, side: str, tokens: int | None = None
) -> None:
    """Refuse blocks that no plan would take, without making one.

    Args:
        side: ``source`` or ``target``, for the error.
        tokens: how many they hold, where that is told.

    Raises:
        UsageError: see :meth:`KVPlan.of`; blocks that come twice, on either side; more than can be told.
    """
    numbers = _blocks(side, blocks, layout)
    if len(numbers) > MOST_BLOCKS:
        raise UsageError(f"a request has at most {MOST_BLOCKS:,} blocks, not {len(numbers):,}")
    _refuse(numbers, _doubled(numbers), side, "come twice")
    if tokens is not None:
        _tokens(layout, numbers, layout, numbers, tokens)


def check_tokens(layout: KVLayout, tokens: object) -> int:
    """How many tokens a cache holds, as long as its blocks are not known.

    Raises:
        UsageError: no whole number, or more than all blocks hold.
    """
    count, room = _count(tokens), layout.num_blocks * layout.block_size
    if count > room:
        raise UsageError(
            f"{count} tokens are more than the {layout.num_blocks} blocks of {layout.block_size} hold, {room}"
        )
    return count


def sources_of(target: KVLayout, source_tp: int) -> list[int]:
    """The ranks of a source that a rank hears from: one for each of its heads.

    Where several ranks have the same heads, the ranks of the target are spread over them.

    Raises:
        UsageError: the heads cannot be shared out to ``source_tp`` ranks; names both.
    """
    return _heard(target.kv_heads, source_tp, target.tp_size, target.tp_rank)


def targets_of(source: KVLayout, target_tp: int) -> list[int]:
    """The ranks of a target that hear from a rank: those whose :func:`sources_of` have it.

    May be empty, where other ranks have the same heads.

    Raises:
        UsageError: the heads cannot be shared out to ``target_tp`` ranks; names both.
    """
    shares(source.kv_heads, target_tp)
    return [
        rank
        for rank in range(target_tp)
        if source.tp_rank in _heard(source.kv_heads, source.tp_size, target_tp, rank)
    ]


def _heard(kv_heads: int, source_tp: int, target_tp: int, target_rank: int) -> list[int]:
    per_source, source_copies = shares(kv_heads, source_tp)
    per_target, target_copies = shares(kv_heads, target_tp)
    group, copy = divmod(target_rank, target_copies)
    chosen = copy * source_copies // target_copies
    first, last = group * per_target, (group + 1) * per_target - 1
    return [
        other * source_copies + chosen
        for other in range(first // per_source, last // per_source + 1)
    ]


def _runs(
    source: KVLayout, here: Offsets, target: KVLayout, there: Offsets, tokens: int
) -> tuple[Offsets, Offsets, Offsets]:
    """Runs of bytes that follow each other on both sides within a block: source, target, length."""
    common = range(
        max(source.head_range.start, target.head_range.start),
        min(source.head_range.stop, target.head_range.stop),
    )
    nothing = np.zeros(0, np.int64)
    if not common or not tokens:
        return nothing, nothing, nothing
    # Stretches of tokens that lie in one block on both sides.
    starts = _multiples(tokens, source.block_size, target.block_size)
    lengths = np.diff(starts, append=tokens)
    ours, theirs = source.strides, target.strides
    at_source = (
        here[starts // source.block_size] * ours.block
        + starts % source.block_size * ours.token
        + (common.start - source.head_range.start) * ours.head
    )
    at_target = (
        there[starts // target.block_size] * theirs.block
        + starts % target.block_size * theirs.token
        + (common.start - target.head_range.start) * theirs.head
    )
    order = np.argsort(at_target)
    at_source, at_target, lengths = at_source[order], at_target[order], lengths[order]
    columns = []
    # A few lengths at most; numpy.unique takes three times as long.
    for length in sorted(set(lengths.tolist())):
        chosen = lengths == length
        run, axes = _folded(source, target, length, len(common))
        # The outermost axis of the target first: what comes out is then in order, or nearly.
        stretches = (theirs.block, at_source[chosen], at_target[chosen])
        steps = [(far, np.arange(size) * near, np.arange(size) * far) for size, near, far in axes]
        sources = targets = np.zeros(1, np.int64)
        for _, near, far in sorted([stretches, *steps], key=lambda axis: -axis[0]):
            sources = np.add.outer(sources, near).ravel()
            targets = np.add.outer(targets, far).ravel()
        columns.append((sources, targets, np.full(len(sources), run)))
    return (
        np.concatenate([column[0] for column in columns]),
        np.concatenate([column[1] for column in columns]),
        np.concatenate([column[2] for column in columns]),
    )


def _multiples(end: int, one: int, other: int) -> Offsets:
    """Of either number below the end, in order."""
    finer, coarser = sorted((one, other))
    multiples = np.arange(0, end, finer)
    return multiples if coarser % finer == 0 else np.union1d(multiples, np.arange(0, end, coarser))


def _folded(
    source: KVLayout, target: KVLayout, tokens: int, heads: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """The longest run that all have in common, and the axes over which it is repeated.

    An axis is its length and its stride on each side. An axis whose items follow each other on both
    sides becomes part of the run.
    """
    ours, theirs = source.strides, target.strides
    axes = [(tokens, ours.token, theirs.token), (heads, ours.head, theirs.head)]
    apart: list[tuple[int, int, int]] = []
    if source.parts == 2:
        # Keys and values in tensors of their own never follow each other.
        split = "split" in (source.form, target.form)
        (apart if split else axes).append((2, ours.part, theirs.part))
    axes = [axis for axis in axes if axis[0] > 1]
    run = source.head_nbytes
    while True:
        following = next((axis for axis in axes if axis[1] == axis[2] == run), None)
        if following is None:
            return run, axes + apart
        run *= following[0]
        axes.remove(following)


def _merged(
    source: Offsets, target: Offsets, sizes: Offsets, source_border: int, target_border: int
) -> tuple[Offsets, Offsets, Offsets]:
    """By ascending target, and runs that follow each other on both sides made one."""
    if not len(sizes):
        return source, target, sizes
    if not (target[1:] > target[:-1]).all():
        order = np.argsort(target)
        source, target, sizes = source[order], target[order], sizes[order]
    begins = np.ones(len(sizes), np.bool_)
    begins[1:] = (source[1:] != source[:-1] + sizes[:-1]) | (target[1:] != target[:-1] + sizes[:-1])
    begins[1:] |= (source[1:] == source_border) | (target[1:] == target_border)
    first = np.flatnonzero(begins)
    return source[first], target[first], np.add.reduceat(sizes, first)


def _addresses(offsets: Offsets, tensors: tuple[int, ...], bases: Sequence[int]) -> Offsets:
    if len(bases) != len(tensors):
        raise UsageError(f"a layer has {len(tensors)} tensors here, not {len(bases)}")
    if len(tensors) == 1:
        return offsets + bases[0]
    return np.where(offsets < tensors[0], offsets + bases[0], offsets + (bases[1] - tensors[0]))


def _as_slice(ascending: Offsets) -> Offsets | slice:
    first, last = int(ascending[0]), int(ascending[-1])
    return slice(first, last + 1) if last - first + 1 == len(ascending) else ascending


def _border(tensors: tuple[int, ...]) -> int:
    """Where a second tensor begins; -1 where there is none."""
    return tensors[0] if len(tensors) == 2 else -1


def _blocks(side: str, blocks: Sequence[int], layout: KVLayout) -> Offsets:
    numbers: npt.NDArray[Any] = np.asarray(blocks)
    if not isinstance(blocks, np.ndarray) and bool in set(map(type, blocks)):
        raise UsageError(f"blocks of the {side} are told by their numbers, not by True and False")
    if numbers.ndim == 1 and not numbers.size:
        return np.zeros(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UsageError(f"blocks of the {side} have to be whole numbers of 64 bits")
    wrong = (numbers < 0) | (numbers >= layout.num_blocks)
    _refuse(numbers, wrong, side, f"are not among its {layout.num_blocks}, which count from 0")
    return numbers.astype(np.int64)


def _doubled(numbers: Offsets) -> npt.NDArray[np.bool_]:
    again = np.ones(len(numbers), np.bool_)
    again[np.unique(numbers, return_index=True)[1]] = False
    return again


def _refuse(numbers: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], side: str, why: str) -> None:
    if wrong.any():
        named = numbers[wrong].tolist()
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        raise UsageError(f"blocks {', '.join(map(str, named[:_NAMED]))}{more} of the {side} {why}")


def _count(tokens: object) -> int:
    try:
        if isinstance(tokens, bool):
            raise TypeError
        count = operator.index(tokens)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if count < 0:
        raise UsageError(f"tokens has to be a whole number of at least 0, not {tokens!r}")
    return count


def _tokens(
    source: KVLayout, here: Offsets, target: KVLayout, there: Offsets, tokens: int | None
) -> int:
    room = len(here) * source.block_size, len(there) * target.block_size
    if tokens is None:
        if room[0] != room[1]:
            raise UsageError(
                f"{len(here)} blocks of {source.block_size} tokens at the source and {len(there)} of "
                f"{target.block_size} at the target do not hold the same: give the number of tokens"
            )
        return room[0]
    tokens = _count(tokens)
    for side, blocks, layout in (("source", here, source), ("target", there, target)):
        needed = -(-tokens // layout.block_size)
        if len(blocks) != needed:
            raise UsageError(
                f"{tokens} tokens are {needed} blocks of {layout.block_size} at the {side}, "
                f"not {len(blocks)}"
            )
    return tokens
