"""Addresses of side channels: ``tcp://host:port``.

In: texts. Out: host and port, and texts again.
Never: asks a name service.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from ..abc.hosts import is_host
from ..errors import UsageError

_SCHEME = "tcp://"


class HostPort(NamedTuple):
    host: str
    """A name or an address, an IPv6 address without brackets."""
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEME}{host}:{self.port}"


def parsed(address: str) -> HostPort:
    """What to connect to. An IPv6 address may come with or without brackets.

    Raises:
        UsageError: it is no such address; says what is wrong with it.
    """
    host, _, digits = address.removeprefix(_SCHEME).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else 0
    if not address.startswith(_SCHEME) or not is_host(host) or not 0 < number < 65536:
        raise UsageError(
            f"{address!r} is no address of a sender: expected 'tcp://host:port', with the host that "
            "receivers reach it by and a port from 1 to 65535"
        )
    return HostPort(host, number)


def is_numeric(host: str) -> bool:
    """Whether it is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this host only; a name is not looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
