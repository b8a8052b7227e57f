"""How wide text is in a terminal, and text that every terminal can show.

In: text. Out: columns, spelled text.
Never: prints.
"""

from __future__ import annotations

import unicodedata

TIMES = "×"
ELLIPSIS = "…"
_PLAIN = str.maketrans({TIMES: "x", ELLIPSIS: "...", "–": "-"})


def columns(text: str) -> int:
    """How many columns a terminal gives to printable text."""
    return sum(_columns(letter) for letter in text) if not text.isascii() else len(text)


def cells(text: str) -> list[str]:
    """The text column by column; a wide letter is followed by an empty one."""
    found: list[str] = []
    for letter in text:
        width = _columns(letter)
        if width:
            found += [letter, ""][:width]
        elif found:  # an accent goes to the letter before it
            found[-2 if found[-1] == "" else -1] += letter
    return found


def spelled(text: str, encoding: str = "utf-8") -> str:
    """The text with what cannot be shown written as ``\\n``, ``\\x1b``, ``\\u200b``."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        plain = shown.translate(_PLAIN)
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return shown


def clipped(text: str, width: int) -> str:
    """The text, with its middle left out when it is longer than that many letters."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + ELLIPSIS + text[-tail:]


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
