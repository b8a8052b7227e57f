"""Requests that have failed, or were declined, for consumers that ask late.

In: a request's end. Out: the same, until it is forgotten.
Never: remembers more than so many.
"""

from __future__ import annotations

from collections.abc import Iterator

from .words import Reason

REMEMBERED = 4096
"""Requests whose end is remembered."""


class Remembered:
    """Of one producer."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[Reason, str]] = {}
        self._unwanted: set[str] = set()
        """Those of them for which a consumer said so before there was a session."""

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ends

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __getitem__(self, request_id: str) -> tuple[Reason, str]:
        return self._ends[request_id]

    def add(self, request_id: str, reason: Reason, text: str, *, unwanted: bool = False) -> None:
        """It has failed; ``unwanted``: before it began, by its consumer."""
        self.forget(request_id)
        self._ends[request_id] = reason, text
        if unwanted:
            self._unwanted.add(request_id)
        if len(self._ends) > REMEMBERED:
            self.forget(next(iter(self._ends)))

    def begun(self, request_id: str) -> tuple[Reason, str] | None:
        """Forget it, for it begins after all; its end where a consumer has declined it before."""
        end = self._ends.get(request_id)
        unwanted = request_id in self._unwanted
        self.forget(request_id)
        return end if unwanted else None

    def forget(self, request_id: str) -> None:
        """Nobody asks for it any more. Idempotent."""
        self._ends.pop(request_id, None)
        self._unwanted.discard(request_id)
