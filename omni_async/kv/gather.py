"""Copies of a layer's pieces: between a cache and a buffer that has them one after another, or two caches.

In: a plan and addresses. Out: the bytes in place.
Never: checks whether memory is there, frees it, holds the GIL while it copies much.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._aio.copying import copy
from ..errors import UsageError
from .plan import KVPlan, Offsets

LARGE = 64 << 10
"""Bytes of a piece on average from which each is copied by a call of its own; smaller ones go by index,
thousands in one call."""

_ON_THE_WAY = 256 << 10  # between two scattered places; stays in a processor's own cache


def gather(plan: KVPlan, bases: Sequence[int], out: int) -> None:
    """Copy the pieces of one layer out of the source's cache, one after another. Blocks; for any thread.

    Args:
        plan: its order is that of the pieces.
        bases: addresses of the layer's tensors at the source.
        out: address of ``plan.nbytes`` bytes.

    Raises:
        UsageError: a layer has another number of tensors.
    """
    if plan.piece_nbytes >= LARGE:
        _each(places(plan, out), plan.source_addresses(bases), plan.sizes)
        return
    _count(bases, plan.source_tensors)
    for units in plan.units:
        rows = _rows(bases, plan.source_tensors, units.source_tensor, units.nbytes)
        buffer = _rows([out], (plan.nbytes,), 0, units.nbytes)
        if isinstance(units.buffer, slice):
            np.take(rows, units.source, out=buffer[units.buffer], mode="clip")
        else:
            _across(rows, units.source, buffer, units.buffer)


def scatter(plan: KVPlan, bases: Sequence[int], data: int) -> None:
    """Copy the pieces of one layer, one after another in ``data``, to their places in the target's cache.

    Blocks; for any thread.

    Args:
        plan: the one by which they were gathered, or an equal one.
        bases: addresses of the layer's tensors at the target.
        data: address of ``plan.nbytes`` bytes.

    Raises:
        UsageError: a layer has another number of tensors.
    """
    if plan.piece_nbytes >= LARGE:
        _each(plan.target_addresses(bases), places(plan, data), plan.sizes)
        return
    _count(bases, plan.target_tensors)
    for units in plan.units:
        rows = _rows(bases, plan.target_tensors, units.target_tensor, units.nbytes)
        buffer = _rows([data], (plan.nbytes,), 0, units.nbytes)
        if isinstance(units.buffer, slice):
            np.put(rows, units.target, buffer[units.buffer], mode="clip")
        else:
            _across(buffer, units.buffer, rows, units.target)


def carry(plan: KVPlan, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copy the pieces of one layer from cache to cache, where both can be reached. Blocks; for any thread.

    Args:
        plan: which pieces.
        sources: addresses of the layer's tensors at the source.
        targets: the same at the target.

    Raises:
        UsageError: a layer has another number of tensors.
    """
    if plan.piece_nbytes >= LARGE:
        _each(plan.target_addresses(targets), plan.source_addresses(sources), plan.sizes)
        return
    _count(sources, plan.source_tensors)
    _count(targets, plan.target_tensors)
    for units in plan.units:
        _across(
            _rows(sources, plan.source_tensors, units.source_tensor, units.nbytes),
            units.source,
            _rows(targets, plan.target_tensors, units.target_tensor, units.nbytes),
            units.target,
        )


def places(plan: KVPlan, start: int) -> Offsets:
    """Where each piece is in a buffer that begins at ``start``."""
    return np.cumsum(plan.sizes) - plan.sizes + start


def _each(targets: Offsets, sources: Offsets, sizes: Offsets) -> None:
    for target, source, nbytes in zip(
        targets.tolist(), sources.tolist(), sizes.tolist(), strict=True
    ):
        copy(target, source, nbytes)


def _across(
    source: npt.NDArray[Any], take: Offsets, target: npt.NDArray[Any], put: Offsets
) -> None:
    step = max(1, _ON_THE_WAY // source.itemsize)
    between = np.empty(min(step, len(take)), source.dtype)
    for start in range(0, len(take), step):
        chosen = take[start : start + step]
        part = between[: len(chosen)]
        np.take(source, chosen, out=part, mode="clip")
        np.put(target, put[start : start + step], part, mode="clip")


def _count(bases: Sequence[int], tensors: tuple[int, ...]) -> None:
    if len(bases) != len(tensors):
        raise UsageError(f"a layer has {len(tensors)} tensors here, not {len(bases)}")


def _rows(
    bases: Sequence[int], tensors: tuple[int, ...], number: int, nbytes: int
) -> npt.NDArray[Any]:
    """A tensor's memory as opaque items of ``nbytes``: numpy copies them without the GIL."""
    count = tensors[number] // nbytes
    memory = (ctypes.c_char * (count * nbytes)).from_address(bases[number])
    return np.frombuffer(memoryview(memory), np.dtype((np.void, nbytes)))
