"""When two names of hosts may be one host.

In: names. Out: a judgement, as far as the names alone tell.
Never: asks a name service.
"""

from __future__ import annotations

import contextlib
import ipaddress

from ..abc.hosts import checked_host, is_host

__all__ = ["checked_host", "is_host", "may_be_one"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def may_be_one(first: str | None, second: str | None) -> bool:
    """Two that both have a name are the same when the names are."""
    one, other = _known(first), _known(second)
    return one is None or other is None or one == other


def _known(host: str | None) -> str | None:
    if host is None or not is_host(host):
        return None
    name = host.lower().rstrip(".")
    with contextlib.suppress(ValueError):  # a name
        name = ipaddress.ip_address(name).compressed
    return _LOOPBACK[0] if name in _LOOPBACK else name
