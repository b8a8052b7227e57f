"""Writer: one walk over one value, from Python objects to a tree MessagePack can hold.

In: a value. Out: a tree of plain values and :class:`Ext`, and the frames beside it.
Never: joins frames, keeps anything between two values.

MessagePack's encoder runs in C and takes whatever looks like a list, a mapping or a number: it would
turn tuples, sets, enums and subclasses into something else without a word. So the walk decides by
exact type. What is plain goes to the encoder as it is (no copy of a list of numbers is made);
everything else becomes an extension with a body of its own.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from operator import countOf
from typing import Any

from ..errors import EncodeError
from .frames import Frame, bytes_frame
from .limits import BULK_BYTES, DEPTH_LIMIT, LONG_TEXT
from .wire import BUFFER, Ext, Tag, encode_tree

Write = Callable[["Writer", Any, int], Any]
"""(writer, value, depth) -> tree. Raises :class:`UnsendableError`."""

PLAIN = frozenset({int, float, bool, str, type(None)})
"""Exact types the encoder writes and the decoder restores as they are."""

_PATH_SHOWN = 200
_NESTING = frozenset({str, list, tuple, dict})
_INT_RANGE = range(-(1 << 63), 1 << 64)

_reprs = reprlib.Repr()
_reprs.maxstring = _reprs.maxother = _reprs.maxlong = 60
short = _reprs.repr
"""``repr`` that stays short and survives a class whose own ``repr`` fails."""


class UnsendableError(Exception):
    """Something cannot be sent; on its way up every container adds where it was."""

    def __init__(self, reason: str, *, too_deep: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.too_deep = too_deep
        self.steps: list[tuple[int, str]] = []

    def at(self, container: object, step: str) -> None:
        """Add one step: the container, and how its content is reached."""
        self.steps.append((id(container), step))

    def error(self) -> EncodeError:
        """What the caller of ``put`` sees."""
        path, shown, reason, seen = "value", "value", self.reason, set[int]()
        for container, step in reversed(self.steps):
            if self.too_deep and container in seen:
                reason = "contains itself; a payload is a tree"
                shown = path
                break
            seen.add(container)
            path += step
            shown = path if len(path) <= _PATH_SHOWN else f"{path[:120]}...{path[-60:]}"
        return EncodeError(f"{shown}: {reason}", path=path)


def too_deep() -> UnsendableError:
    return UnsendableError(f"is nested deeper than {DEPTH_LIMIT} levels", too_deep=True)


class Writer:
    """Frames found so far, and the walk. ``writers`` maps exact types to what writes them."""

    __slots__ = ("find", "frames", "writers")

    def __init__(self, writers: dict[type, Write], find: Callable[[type], Write]) -> None:
        self.frames: list[Frame] = []
        self.writers = writers
        self.find = find

    def tree(self, value: Any, depth: int) -> Any:
        """The tree of any value."""
        kind = type(value)
        if kind in PLAIN:
            return value
        return (self.writers.get(kind) or self.find(kind))(self, value, depth)

    def add(self, frame: Frame) -> int:
        """File a frame and return its index."""
        frames = self.frames
        frames.append(frame)
        return len(frames) - 1

    def pack(self, tree: Any) -> bytes:
        """A tree as MessagePack; what its integers and UTF-8 cannot hold becomes extensions."""
        try:
            body = encode_tree(tree)
        except (OverflowError, ValueError):
            pass
        else:
            if len(body) <= BULK_BYTES or not _holds_long_text(tree):
                return body
        return encode_tree(self._repaired(tree))

    def ext(self, tag: int, tree: Any) -> Any:
        """An extension whose body is a tree."""
        return Ext(tag, self.pack(tree))

    def items(self, value: Any, depth: int) -> Any:
        """The trees of a list's or tuple's items; the very same object where all are plain."""
        if not value:
            return value
        if depth >= DEPTH_LIMIT:
            raise too_deep()
        kind = type(value[0])
        if kind in PLAIN and (
            countOf(map(type, value), kind) == len(value) or PLAIN.issuperset(map(type, value))
        ):
            return value
        out: list[Any] = []
        writers = self.writers
        try:
            for item in value:
                kind = type(item)
                if kind in PLAIN:
                    out.append(item)
                else:
                    out.append((writers.get(kind) or self.find(kind))(self, item, depth + 1))
        except UnsendableError as refused:
            refused.at(value, f"[{len(out)}]")
            raise
        return out

    def fields(self, owner: object, parts: dict[str, Any], depth: int) -> dict[str, Any]:
        """The trees of an object's named parts."""
        if depth >= DEPTH_LIMIT:
            raise too_deep()
        out: dict[str, Any] = {}
        for name, part in parts.items():
            try:
                out[name] = self.tree(part, depth + 1)
            except UnsendableError as refused:
                refused.at(owner, f".{name}")
                raise
        return out

    def _repaired(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is int:
            return tree if tree in _INT_RANGE else Ext(Tag.LONG_INT, _long_int(tree))
        if kind is str:
            return self._text(tree)
        if kind is list or kind is tuple:
            return [self._repaired(item) for item in tree]
        if kind is not dict:
            return tree
        if all(map(_is_native_key, tree)):
            return {key: self._repaired(item) for key, item in tree.items()}
        return self.ext(Tag.PAIRS, [part for pair in tree.items() for part in pair])

    def _text(self, text: str) -> Any:
        if len(text) > LONG_TEXT:
            raw = text.encode("utf-8", "surrogatepass")
            return Ext(Tag.TEXT, BUFFER.pack(self.add(bytes_frame(raw)), len(raw)))
        if _is_utf8(text):
            return text
        return Ext(Tag.SURROGATES, text.encode("utf-8", "surrogatepass"))


def _holds_long_text(tree: Any) -> bool:
    """Whether a text is worth a frame; millions of numbers are passed over at C speed."""
    kind = type(tree)
    if kind is str:
        return len(tree) > LONG_TEXT
    parts = tree.values() if kind is dict else tree
    return (
        kind in _NESTING
        and not _NESTING.isdisjoint(map(type, parts))
        and any(_holds_long_text(part) for part in parts if type(part) in _NESTING)
    )


def _is_native_key(key: Any) -> bool:
    kind = type(key)
    return key in _INT_RANGE if kind is int else kind is not str or _is_utf8(key)


def _long_int(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
