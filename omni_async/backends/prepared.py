"""What a backend has made for a transport that is about to open.

In: options that were prepared, and what was made with them. Out: it, once, for the same options.
Never: keeps it for options that nobody has any more: who only asked whether it runs here opens nothing.
"""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from ..abc import Options

T = TypeVar("T")


class Prepared(Generic[T]):
    """By the very object: equal options are those of another transport."""

    def __init__(self) -> None:
        self._made: dict[int, T] = {}

    def keep(self, options: Options, made: T) -> Options:
        """Keep it as long as these options live; returns them."""
        self._made[id(options)] = made
        weakref.finalize(options, self._made.pop, id(options), None).atexit = False
        return options

    def take(self, options: Options) -> T:
        """What was made for these options; it is the caller's now."""
        return self._made.pop(id(options))
