"""How much may wait, how many may be active, how long nothing may come.

In: what a caller asks for. Out: numbers that make sense, or an error.
Never: counts anything itself.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ..errors import UsageError

STALL_SECONDS = 600.0


class Limits(msgspec.Struct, frozen=True):
    """What may wait at a producer: outputs that were submitted and chunks that were not sent.

    An output is refused where it would go past a limit and something waits already; bytes are those of
    tensors, arrays, bytes and text in it.
    """

    chunks: int = 256
    """Of one request."""
    nbytes: int = 64 << 20
    """Of one request."""
    total_chunks: int = 65_536
    """Of all."""
    total_nbytes: int = 1 << 30
    """Of all."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"limit {name} must be an int of at least 1, not {value!r}")


def checked_stall_timeout(seconds: Any) -> float:
    """Raises: UsageError: negative, not finite or no number."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"stall_timeout must be seconds, not {seconds!r}")
    if not math.isfinite(seconds) or seconds < 0:
        raise UsageError(
            f"stall_timeout must be seconds, at least 0 and finite, not {seconds!r}; 0 disables it"
        )
    return float(seconds)


def checked_max_active(count: Any) -> int:
    """Raises: UsageError: no int of at least 0."""
    if type(count) is not int or count < 0:
        raise UsageError(
            f"max_active must be an int of at least 0, not {count!r}; 0 is without a limit"
        )
    return count


SCALAR_NBYTES = 16
_SCALARS = frozenset({int, float, bool, type(None)})
_DEEP = 32
"""Deeper trees are refused by the codec; here they only must not run away."""


def size_of(value: Any, depth: int = 0) -> int:
    """About how many bytes a value holds on to. Never raises."""
    kind = type(value)
    if kind in _SCALARS or depth > _DEEP:
        return SCALAR_NBYTES
    if kind is str or kind is bytes or kind is bytearray:
        return SCALAR_NBYTES + len(value)
    nbytes = getattr(value, "nbytes", None)  # tensors, arrays, memoryviews, buffers of the pool
    if type(nbytes) is int:
        return SCALAR_NBYTES + nbytes
    if kind is dict:
        return SCALAR_NBYTES + sum(size_of(item, depth + 1) for item in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        if _SCALARS.issuperset(map(type, value)):
            return SCALAR_NBYTES * (1 + len(value))
        return SCALAR_NBYTES + sum(size_of(item, depth + 1) for item in value)
    if isinstance(value, msgspec.Struct):
        fields = [getattr(value, name, None) for name in value.__struct_fields__]
        return size_of(fields, depth + 1)
    return size_of(getattr(value, "__dict__", None), depth + 1)
