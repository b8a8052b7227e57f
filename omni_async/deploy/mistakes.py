"""Mistakes of a deploy file, collected so that all are told at once.

In: places in the file and what is wrong there. Out: one ConfigError that lists them.
Never: reads a file, stops at the first mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..errors import ConfigError

Place = tuple["str | int", ...]
"""Keys and positions from the top of the file down."""


class Mistake(NamedTuple):
    """One thing that is wrong in a file."""

    path: str
    """Such as ``stages[1].input_connectors.from_stage_0``; empty for the file as a whole."""
    text: str
    """What is wrong and what to do."""
    line: int | None = None
    """Counted from 1, where the file has lines."""

    def __str__(self) -> str:
        where = self.path or "file"
        return f"{where}{f' (line {self.line})' if self.line else ''}: {self.text}"


class Mistakes:
    """A growing list; :meth:`settle` ends it."""

    def __init__(self, source: str, lines: Mapping[Place, int]) -> None:
        self.source = source
        self.lines = lines
        self._found: dict[tuple[str, str], Mistake] = {}

    def add(self, place: Place, text: str) -> None:
        """Note a mistake; the same one at the same place is noted once."""
        path = spelled(place)
        self._found.setdefault((path, text), Mistake(path, text, self._line(place)))

    def settle(self) -> None:
        """Raise what was found.

        Raises:
            ConfigError: there is at least one mistake; ``path`` is that of the first,
                ``mistakes`` has them all in the order of the file.
        """
        if not self._found:
            return
        found = sorted(self._found.values(), key=lambda mistake: mistake.line or 0)
        raise refusal(self.source, found)

    def _line(self, place: Place) -> int | None:
        while place not in self.lines:  # a missing key is told at what should hold it
            if not place:
                return None
            place = place[:-1]
        return self.lines[place]


def refusal(source: str, mistakes: list[Mistake]) -> ConfigError:
    """The error for a file with these mistakes."""
    count = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    text = "\n".join([f"{source} has {count}:", *(f"  {mistake}" for mistake in mistakes)])
    return ConfigError(text, path=mistakes[0].path or None, mistakes=tuple(mistakes))


def spelled(place: Place) -> str:
    """A place as people write it: ``stages[1].extra``."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant."""
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return lower[found[0]] if found else None


def hint(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or the list of what is known."""
    known = list(known)
    meant = nearest(word, known)
    if meant is not None:
        return f"; did you mean {meant!r}?"
    return f"; known: {', '.join(known)}" if known else ""
