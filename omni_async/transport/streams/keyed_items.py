"""Items of a stream over a store: what each is filed under, and what it says.

In: chunks, marks, ends. Out: keys and tuples for the codec, and back.
Never: touches a transport or the clock.

An item is filed under ``{request}_{stage}_{number}``: ``stage`` is the one that sends, ``number`` counts
chunks, segment marks and the end together, from 0. It is a tuple::

    (generation, kind, body, clock, at)

``generation`` grows from one writer of a request to the next: what an earlier one has left behind is told
from what belongs to this one. ``at`` is when it was sent, on the clock of that number.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from ...errors import ProtocolError
from ...model import TransferKey
from ..arguments import checked_key

ROOM_FOR_NUMBERS = 10**15


class Kind(enum.IntEnum):
    CHUNK = 0
    """``body`` is the chunk."""
    SEGMENT = 1
    END = 2
    """``body`` is the reason it was aborted for, or ``None``: it has finished."""


class Item(NamedTuple):
    generation: int
    kind: Kind
    body: Any
    clock: int
    at: int


def item_key(where: TransferKey, number: int) -> str:
    """What item ``number`` of a stream is filed under."""
    return f"{where.key}_{where.from_stage}_{number}"


def checked_where(where: TransferKey) -> TransferKey:
    """The stream, if the keys of its items can be keys.

    Raises:
        UsageError: its own key is too long for that.
    """
    checked_key(item_key(where, ROOM_FOR_NUMBERS))
    return where


def item_of(value: Any, key: str) -> Item:
    """An item from what was got under ``key``.

    Raises:
        ProtocolError: it is none.
    """
    if type(value) is tuple and len(value) == len(Item._fields):
        generation, kind, body, clock, at = value
        numbers = (generation, kind, clock, at)
        if all(type(number) is int for number in numbers) and 0 <= kind < len(Kind):
            item = Item(generation, Kind(kind), body, clock, at)
            if item.kind is not Kind.END or body is None or type(body) is str:
                return item
    raise ProtocolError(f"what was put under {key!r} is no item of a stream")
