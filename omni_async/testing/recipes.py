"""Values by recipe: made alike in two processes, so that no codec is trusted to compare itself.

In: a recipe, which is small and plain. Out: the value.
Never: carries a value's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from .samples import FAMILIES, register_samples


class Recipe(msgspec.Struct, frozen=True):
    """How to make a value: a kind and its arguments."""

    kind: str
    arguments: list[Any] = []

    def make(self) -> Any:
        """The value, made anew."""
        register_samples()
        return _KINDS[self.kind](*self.arguments)


def family(name: str) -> Recipe:
    """All samples of a family, by name."""
    return Recipe("family", [name])


def sample(name: str, of: str) -> Recipe:
    """One sample of a family."""
    return Recipe("sample", [of, name])


def pattern(nbytes: int, seed: int = 0) -> Recipe:
    """A ``uint8`` array in which every stretch of eight bytes tells its seed and its place."""
    return Recipe("pattern", [nbytes, seed])


def literal(value: Any) -> Recipe:
    """Plain data: ``None``, numbers, text, lists, string-keyed dictionaries."""
    return Recipe("literal", [value])


def tree(nbytes: int, seed: int = 0) -> Recipe:
    """A dictionary as stages exchange it: an array, small arrays, lists and text."""
    return Recipe("tree", [nbytes, seed])


def pattern_array(nbytes: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The value of :func:`pattern`."""
    words = np.arange(-(-nbytes // 8), dtype=np.uint64)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words ^= np.uint64((seed * 0x2545F4914F6CDD1D + 0x1234567) % 2**64)
    data: np.ndarray[Any, np.dtype[np.uint8]] = words.view(np.uint8)[:nbytes].copy()
    return data


def _tree(nbytes: int, seed: int) -> Any:
    return {
        "request_id": f"req-{seed}",
        "hidden_states": pattern_array(nbytes, seed),
        "codec": list(range(seed, seed + 400)),
        "meta": {"step": seed, "last": pattern_array(64, seed + 1), "done": False, "none": None},
    }


_KINDS: dict[str, Callable[..., Any]] = {
    "family": lambda name: FAMILIES[name](),
    "sample": lambda name, sample: FAMILIES[name]()[sample],
    "pattern": pattern_array,
    "literal": lambda value: value,
    "tree": _tree,
}
