"""Which operations of one peer have been heard of.

In: operation ids, nearly in order. Out: whether one is new.
Never: grows beyond a bound; takes a word that comes late for one that comes twice.
"""

from __future__ import annotations

LIMIT = 1024
"""Ids remembered one by one; a word may be overtaken by about half as many."""


class Seen:
    """Ids of one line."""

    __slots__ = ("_floor", "_ids")

    def __init__(self) -> None:
        self._floor = 0
        """Ids up to this one count as heard of."""
        self._ids: set[int] = set()

    def add(self, op: int) -> bool:
        """Hear of an id; whether it is new."""
        ids = self._ids
        if op <= self._floor or op in ids:
            return False
        ids.add(op)
        if len(ids) > LIMIT:
            oldest = sorted(ids)[: LIMIT // 2]
            self._floor = oldest[-1]
            ids.difference_update(oldest)
        return True
