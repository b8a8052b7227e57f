"""For whom a session is, and who of them has come.

In: consumers that ask, and where each stands in its instance. Out: who is one too many, whether all are there.
Never: knows what anybody gets.

A request is for so many instances. Each is one rank or several, and instances may have different numbers of them:
which ranks belong together is not told, so they are counted by their places. Two at one place are two instances.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Seat(NamedTuple):
    """Where a consumer stands among the ranks of its instance that hear from this producer rank."""

    tp_size: int = 1
    rank: int = 0
    ranks: tuple[int, ...] = (0,)
    """Of its instance, those that hear from here."""


_Kind = tuple[int, tuple[int, ...]]


class Audience:
    """Of one session.

    Args:
        instances: it is for.
    """

    def __init__(self, instances: int) -> None:
        self._instances = instances
        self._came: dict[_Kind, Counter[int]] = {}
        """Of each kind of instance, by place, how many have come there."""
        self._known: set[str] = set()

    def objection(self, who: str, seat: Seat) -> str | None:
        """Why this consumer does not belong to it, ``None`` where it does."""
        if who in self._known:
            return "this consumer has asked for it already"
        if seat.rank not in seat.ranks:
            return f"rank {seat.rank} of {seat.tp_size} gets nothing from this rank of the producer"
        came = self._came.get((seat.tp_size, seat.ranks), Counter())
        another = came[seat.rank] >= max(came.values(), default=0)
        if self._begun + another > self._instances:
            return f"it is for {self._instances} consumer(s), and this is one more"
        return None

    def add(self, who: str, seat: Seat) -> None:
        """It has come; there was no objection."""
        self._known.add(who)
        self._came.setdefault((seat.tp_size, seat.ranks), Counter())[seat.rank] += 1

    @property
    def complete(self) -> bool:
        """Whether all ranks of all instances have come."""
        whole = sum(min(came[rank] for rank in ranks) for (_, ranks), came in self._came.items())
        return whole == self._instances

    @property
    def expected(self) -> int:
        """Ranks that belong to it, as far as can be told; 0 while nobody has come."""
        if not self._came:
            return 0
        known = sum(max(came.values()) * len(ranks) for (_, ranks), came in self._came.items())
        _, like = next(iter(self._came))
        return known + (self._instances - self._begun) * len(like)

    @property
    def _begun(self) -> int:
        """Instances of which somebody has come."""
        return sum(max(came.values()) for came in self._came.values())
