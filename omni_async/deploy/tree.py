"""A file's values, each with where it came from.

In: values and their origins. Out: trees that can be merged without losing an origin, plain values, places.
Never: knows what a key means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

Place = tuple["str | int", ...]
"""Keys and positions from the top of the file down."""

Kind = Literal["file", "base", "platform", "environment", "call", "default"]


class Origin(NamedTuple):
    """Where a value was written."""

    kind: Kind
    """``base`` for a file named by ``base_config``, ``platform`` for a section of ``platforms``,
    ``call`` for what was given to :func:`load_deploy` itself."""
    source: str = ""
    """The file."""
    line: int | None = None
    """Counted from 1, where the file has lines."""
    path: str = ""
    """Where in that file, such as ``stages[1].host``."""
    variables: tuple[str, ...] = ()
    """For ``environment``: whose values it holds."""


_BITS = 1024

DEFAULT = Origin("default")
"""The origin of what no file says."""


class Node:
    """A value and its origin; mappings and lists hold nodes."""

    __slots__ = ("origin", "value")

    def __init__(self, value: Any, origin: Origin) -> None:
        self.value = value
        self.origin = origin

    def get(self, key: Any) -> Node | None:
        """What a mapping holds under ``key``; ``None`` too where this is no mapping."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def mapping(self) -> dict[Any, Node]:
        """Its entries; none where this is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    def items(self) -> list[Node]:
        """Its items; none where this is no list."""
        return self.value if isinstance(self.value, list) else []

    def replaced(self, value: Any) -> Node:
        """The same place with another value."""
        return Node(value, self.origin)

    def without(self, *keys: Any) -> Node:
        """A mapping that lacks these keys."""
        return Node({k: v for k, v in self.mapping().items() if k not in keys}, self.origin)


def too_large(value: Any) -> bool:
    """Whether a number has more digits than anybody means, and than Python writes out."""
    return isinstance(value, int) and value.bit_length() > _BITS


def said(value: Any) -> str:
    """A value for people, cut short."""
    text = repr(plain(value) if isinstance(value, Node) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def plain(node: Node) -> Any:
    """The values alone."""
    value = node.value
    if isinstance(value, dict):
        return {key: plain(below) for key, below in value.items()}
    if isinstance(value, list):
        return [plain(below) for below in value]
    return value


def origins_of(node: Node) -> dict[Place, Origin]:
    """The origin of everything in a tree, by its place in it."""
    return dict(_walk(node, ()))


def _walk(node: Node, place: Place) -> Iterator[tuple[Place, Origin]]:
    yield place, node.origin
    value = node.value
    below: Iterable[tuple[Any, Node]] = ()
    if isinstance(value, dict):
        below = value.items()
    elif isinstance(value, list):
        below = enumerate(value)
    for key, child in below:
        yield from _walk(child, (*place, key if isinstance(key, int) else str(key)))


def find(place: Place, origins: Mapping[Place, Origin]) -> tuple[Origin | None, Place]:
    """The origin of the nearest place above that has one, and what of the place it does not cover.

    A key that is missing has no origin: it is told at what should hold it.
    """
    rest: Place = ()
    while place not in origins:
        if not place:
            return None, rest
        place, rest = place[:-1], (place[-1], *rest)
    return origins[place], rest


def spelled(place: Place, path: str = "") -> str:
    """A place as people write it, ``stages[1].extra``, below ``path``."""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def merged(base: Node, overlay: Node) -> Node:
    """Two mappings as one: what both hold is merged if both hold mappings, else the overlay's wins."""
    both = dict(base.mapping())
    for key, node in overlay.mapping().items():
        known = both.get(key)
        deep = known is not None and isinstance(known.value, dict) and isinstance(node.value, dict)
        both[key] = merged(known, node) if known is not None and deep else node
    return Node(both, overlay.origin)
