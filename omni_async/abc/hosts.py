"""What people write for a host.

In: text. Out: the host's name or address, or why it is none.
Never: asks a name service: that would make a file right on one machine and wrong on another.
"""

from __future__ import annotations

import re

NOBODY = ("", "auto", "*", "0.0.0.0", "::")
"""For "any", or for "find out yourself"."""


def checked_host(text: str) -> str:
    """A host as it was written, an IPv6 address without its brackets.

    Raises:
        ValueError: it is no name of a host.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if re.fullmatch(r"[^\s/\[\]]*", bare) is None or bare.count(":") == 1:
        raise ValueError(f"a host is a name or an address without a port, not {text!r}")
    return bare


def is_host(text: str | None) -> bool:
    """Whether it names a host to connect to, an IPv6 address without brackets."""
    if text is None or text.lower() in NOBODY:
        return False
    try:
        return checked_host(text) == text
    except ValueError:
        return False
