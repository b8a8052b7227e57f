"""What files call hosts.

In: names of hosts. Out: whether they name one, and whether two of them may be the same.
Never: asks a name service: that would make a file right on one machine and wrong on another.
"""

from __future__ import annotations

import re

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NOBODY = ("", "auto", "*", "0.0.0.0", "::")
"""What people write for "any", or for "find out yourself"."""


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
    return (
        text is not None
        and text.lower() not in _NOBODY
        and re.fullmatch(r"[^\s/\[\]]+", text) is not None
    )


def may_be_one(first: str | None, second: str | None) -> bool:
    """Two that both have a name are the same when the names are."""
    one, other = _known(first), _known(second)
    return one is None or other is None or one == other


def _known(host: str | None) -> str | None:
    if host is None or not is_host(host):
        return None
    return _LOOPBACK[0] if host.lower() in _LOOPBACK else host.lower()
