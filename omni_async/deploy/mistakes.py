"""Mistakes of a deploy file, collected so that all are told at once.

In: places in the file and what is wrong there. Out: one ConfigError that lists them.
Never: reads a file, stops at the first mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..abc.wrong_options import nearest
from ..errors import ConfigError
from .tree import DEFAULT, Origin, Place, find, spelled, too_large

__all__ = ["Mistake", "Mistakes", "hint", "nearest", "refusal"]


class Mistake(NamedTuple):
    """One thing that is wrong in a file."""

    path: str
    """Such as ``stages[1].input_connectors.from_stage_0``; empty for the file as a whole."""
    text: str
    """What is wrong and what to do."""
    line: int | None = None
    """Counted from 1, where the file has lines."""
    file: str | None = None
    """The file, where it is not the one that was asked for: a base of it."""

    def __str__(self) -> str:
        where = self.path or "file"
        at = ", ".join(part for part in (self.file, self.line and f"line {self.line}") if part)
        return f"{where} ({at}): {self.text}" if at else f"{where}: {self.text}"


class Mistakes:
    """A growing list; :meth:`settle` ends it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origins: Mapping[Place, Origin] = {}
        """Where each place of the tree that is looked at was written."""
        self.baseless = False
        """A base could not be read: what seems to be missing may be there."""
        self._found: dict[tuple[str | None, str, str], Mistake] = {}
        self._spoilt: set[tuple[str | None, str]] = set()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: Place, text: str) -> None:
        """Note a mistake at a place of the tree; the same one is noted once."""
        origin, rest = find(place, self.origins)
        if origin is None:
            self._note(Mistake(spelled(place), text))
        else:
            self.at(origin, text, rest)

    def origin(self, place: Place) -> Origin:
        """Where a place, or what should hold it, was written."""
        return find(place, self.origins)[0] or DEFAULT

    def at(self, origin: Origin, text: str, below: Place = ()) -> None:
        """Note a mistake where something was written, or at what is missing ``below`` it."""
        self._note(Mistake(spelled(below, origin.path), text, origin.line, self._file(origin)))

    def bounded(self, value: Any, origin: Origin) -> Any:
        """The value, or 0 for a number with more digits than anybody means, which is noted."""
        if not too_large(value):
            return value
        self.at(origin, "is a number with too many digits")
        self.spoil(origin)
        return 0

    def spoil(self, origin: Origin, below: Place = ()) -> None:
        """No more is to be said of this place: its mistake is noted, and what follows is no news."""
        self._spoilt.add((self._file(origin), spelled(below, origin.path)))

    def join(self, other: Mistakes) -> None:
        """Take over what was found in another source."""
        for mistake in other._found.values():
            self._note(mistake._replace(file=other.source))

    def _file(self, origin: Origin) -> str | None:
        return None if origin.source == self.source else origin.source

    def _note(self, mistake: Mistake) -> None:
        if (mistake.file, mistake.path) not in self._spoilt:
            self._found.setdefault((mistake.file, mistake.path, mistake.text), mistake)

    def settle(self) -> None:
        """Raise what was found.

        Raises:
            ConfigError: there is at least one mistake; ``path`` is that of the first,
                ``mistakes`` has them all in the order of the file, those of its bases behind.
        """
        if not self._found:
            return
        found = sorted(self._found.values(), key=lambda m: (m.file or "", m.line or 0))
        raise refusal(self.source, found)


def refusal(source: str, mistakes: list[Mistake]) -> ConfigError:
    """The error for a file with these mistakes."""
    count = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    text = "\n".join([f"{source} has {count}:", *(f"  {mistake}" for mistake in mistakes)])
    return ConfigError(text, path=mistakes[0].path or None, mistakes=tuple(mistakes))


def hint(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or the list of what is known."""
    known = list(known)
    meant = nearest(word, known)
    if meant is not None:
        return f"; did you mean {meant!r}?"
    return f"; known: {', '.join(known)}" if known else ""
