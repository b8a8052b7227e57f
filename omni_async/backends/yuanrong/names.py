"""Names: what the datasystem calls a text.

In: any text. Out: at most 255 characters of a small alphabet.
Never: gives two texts one name, but for the odds of a hash of 256 bits.
"""

from __future__ import annotations

import hashlib
import re

from ...errors import UsageError

LONGEST = 255
_PLAIN = re.compile(r"[a-zA-Z0-9\-_!@#%^*()+=:;]+")
_OTHER = re.compile(rb"[^a-zA-Z0-9\-_!@#^*()+=:;]")
_HASHED = "%-"
"""Begins the names of texts that are too long. No other name begins so: behind a % there are two digits."""


def name_of(text: str) -> str:
    """Characters that the datasystem refuses, and ``%``, become ``%XX`` for each byte of UTF-8; what is then
    too long becomes its beginning and a hash."""
    name = _OTHER.sub(_escaped, text.encode("utf-8", "surrogatepass")).decode("ascii")
    if len(name) <= LONGEST:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=32).hexdigest()
    return _HASHED + digest + name[: LONGEST - len(_HASHED) - len(digest)]


def plain_name_of(text: str) -> str:
    """The text itself.

    Raises:
        UsageError: the datasystem refuses it.
    """
    if _PLAIN.fullmatch(text) is None or len(text) > LONGEST:
        raise UsageError(
            f"the datasystem takes no key like {text[:80]!r}: at most {LONGEST} characters, each a letter, a "
            "digit or one of -_!@#%^*()+=:;"
        )
    return text


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % ord(found[0])
