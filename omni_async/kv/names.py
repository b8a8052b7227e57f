"""Names of requests, and how an error repeats what it refuses.

In: whatever was told. Out: whether it can be a name; a text of a line's length.
Never: changes a name.
"""

from __future__ import annotations

_LONGEST_NAME = 1024
_LONGEST_TEXT = 80


def is_name(text: str) -> bool:
    """Whether both sides can know a request by it: 1 to 1,024 bytes of UTF-8."""
    try:
        return 0 < len(text.encode()) <= _LONGEST_NAME
    except UnicodeEncodeError:
        return False


def told(value: object) -> str:
    """What was told, as an error repeats it: at most 80 characters."""
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
