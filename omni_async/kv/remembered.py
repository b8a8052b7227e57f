"""Requests that have failed, or were declined, for consumers that ask late.

In: a request's end. Out: the same, until it is forgotten.
Never: remembers more than so many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .words import Reason, cut

REMEMBERED = 4096
"""Requests whose end is remembered."""


class End(NamedTuple):
    """Why a request has failed."""

    reason: Reason
    text: str
    unwanted: bool = False
    """A consumer said so before there was a session."""
    by: str | None = None
    """Who had asked for it, and gave it up."""


class Remembered:
    """Of one producer."""

    def __init__(self) -> None:
        self._ends: dict[str, End] = {}
        self.new: dict[str, End] = {}
        """Those that are to be forgotten some time."""

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ends

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __getitem__(self, request_id: str) -> End:
        return self._ends[request_id]

    def add(self, request_id: str, end: End) -> None:
        """It has failed."""
        self.forget(request_id)
        end = end._replace(text=cut(end.text))
        self._ends[request_id] = end
        self.new[request_id] = end
        if len(self._ends) > REMEMBERED:
            self.forget(next(iter(self._ends)))

    def begun(self, request_id: str) -> End | None:
        """Forget it, for it begins after all; its end where a consumer has declined it before."""
        end = self._ends.pop(request_id, None)
        return end if end is not None and end.unwanted else None

    def asked_again(self, request_id: str, who: str) -> None:
        """Who gave it up wants it after all: nothing is to be remembered of that."""
        end = self._ends.get(request_id)
        if end is not None and end.by == who:
            self.forget(request_id, end)

    def forget(self, request_id: str, end: End | None = None) -> None:
        """Nobody asks for it any more. Idempotent.

        Args:
            end: forget this one only, not what was remembered since.
        """
        if end is None or self._ends.get(request_id) is end:
            self._ends.pop(request_id, None)
