"""Unix addresses: what a sender's socket is called, as text and as the system knows it.

In: endpoints, addresses. Out: ``unix:@name`` (abstract) or ``unix:/path``, and their socket names.
Never: opens a socket, gives two endpoints one name.

An abstract name lives in the network namespace and dies with the last process that holds it; a path
is for containers that share a folder but no network namespace.
"""

from __future__ import annotations

import base64
import hashlib
import os
from urllib.parse import quote

from ..errors import ConfigError, UsageError
from ..model import Endpoint

NAME_LIMIT = 107
"""Bytes of a socket's name: 108 less the NUL that begins an abstract name or ends a path."""

_SCHEME = "unix:"


def address_of(endpoint: Endpoint, socket_dir: str | None) -> str:
    """Where a sender endpoint listens.

    Raises:
        ConfigError: ``socket_dir`` is too long for any socket.
    """
    parts = parts_of(endpoint)
    if socket_dir is None:
        prefix, separator, suffix = f"@omni-async/{os.geteuid()}/", "/", ""
        limit = NAME_LIMIT + 1  # the '@' stands for the NUL
    else:
        prefix, separator, suffix = os.path.join(os.path.abspath(socket_dir), ""), ",", ".sock"
        limit = NAME_LIMIT
    name = f"{prefix}{separator.join(parts)}{suffix}"
    if len(os.fsencode(name)) > limit:
        digest = hashlib.blake2b(separator.join(parts).encode(), digest_size=15).digest()
        name = f"{prefix}#{base64.urlsafe_b64encode(digest).decode()}{suffix}"
    if len(os.fsencode(name)) > limit:
        raise ConfigError(
            f"socket_dir {socket_dir!r} is too long: a socket's path may have {NAME_LIMIT} bytes, "
            f"{name!r} has {len(os.fsencode(name))}; choose a folder with a shorter path"
        )
    return _SCHEME + name


def parts_of(endpoint: Endpoint) -> list[str]:
    """Namespace, stage, rank and replica as ASCII texts without ``/``, ``,`` or ``#``.

    Joined with one of those they tell any two endpoints apart.
    """
    parts = [_quoted(endpoint.namespace), _quoted(endpoint.stage)]
    return [*parts, str(endpoint.rank), str(endpoint.replica)]


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def socket_name(address: str) -> str | bytes:
    """What ``bind`` and ``connect`` take for an address.

    Raises:
        UsageError: not the address of a Unix socket.
    """
    name = address[len(_SCHEME) :]
    if not address.startswith(_SCHEME) or len(name) < 2 or name[0] not in "@/" or "\0" in name:
        raise UsageError(
            f"{address!r} is not a Unix socket: expected 'unix:@name' or 'unix:/absolute/path'"
        )
    if len(os.fsencode(name)) > NAME_LIMIT + (name[0] == "@"):
        raise UsageError(f"{address!r} is longer than a socket's name may be ({NAME_LIMIT} bytes)")
    return b"\0" + os.fsencode(name[1:]) if name[0] == "@" else name


def is_path(address: str) -> bool:
    """A file in a folder, not an abstract name."""
    return address.startswith(_SCHEME + "/")


def path_of(address: str) -> str:
    """The file of an address for which :func:`is_path` holds."""
    return address[len(_SCHEME) :]
