"""Hosts of side channels: which address of this machine to listen at, and what a name means.

In: what was configured as host. Out: addresses.
Never: sends a packet, blocks the event loop with a name service, picks the wildcard address, picks a
loopback address while another is known.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, NamedTuple

from .._aio.executor import OwnedExecutor
from ..abc.hosts import NOBODY, checked_host
from ..errors import ConfigError
from ..observe.log import get_logger
from .zmq_address import HostPort, is_loopback, is_numeric

_log = get_logger("omni_async.rendezvous")

_PROBES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that documentation reserves: whoever would be asked to reach them knows the way out."""
_LOOPBACK = "127.0.0.1"
_MOMENTS = 0.25


class Place(NamedTuple):
    """An address as sockets take it."""

    family: int
    sockaddr: tuple[Any, ...]
    """Host, port, and for IPv6 flow and scope."""

    @property
    def where(self) -> HostPort:
        """The same as a text takes it; a link-local address says on which of this host's links."""
        host, port, *rest = self.sockaddr
        if len(rest) > 1 and rest[1]:
            host = f"{host}%{socket.if_indextoname(int(rest[1]))}"
        return HostPort(str(host), int(port))

    @property
    def host(self) -> str:
        return self.where.host

    async def why_not(self) -> OSError:
        """Why nobody could be connected to here, as far as one more attempt tells within moments.

        Cancellation: safe.
        """
        with socket.socket(self.family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            try:
                await asyncio.wait_for(loop.sock_connect(sock, self.sockaddr), _MOMENTS)
            except (asyncio.TimeoutError, TimeoutError):
                return TimeoutError("nobody answers from there")
            except OSError as error:
                return error
        return ConnectionError("there was no connection")


def numeric_places(where: HostPort) -> list[Place]:
    """Where a host is an address: the one place it means."""
    return _places(*where, socket.AI_NUMERICHOST)


def place_of(sock: socket.socket) -> Place:
    """Where a socket is bound."""
    return Place(int(sock.family), sock.getsockname())


async def local_places(host: str, port: int, executor: OwnedExecutor) -> list[Place]:
    """Where a sender may listen, best first.

    ``auto`` (and an empty text, ``*``, ``0.0.0.0`` and ``::``) is the address by which this host
    reaches others, else an address of the host's own name, else loopback.

    Raises:
        ConfigError: it is no host, or its name is not known.

    Cancellation: safe.
    """
    try:
        host = checked_host(host)
    except ValueError as error:
        raise ConfigError(f"host: {error}") from None
    if host.lower() not in NOBODY:
        found = await places(host, port, executor)
        reachable = [place for place in found if not is_loopback(place.host)]
        if reachable or is_numeric(host) or host.lower() == "localhost":
            return reachable or found
        if host != socket.gethostname():
            _log.warning("a host's name leads to loopback only", host=host, address=found[0].host)
            return found
        # Many systems list their own name under 127.0.1.1, which no other host can use.
    return await _own_places(port, executor)


async def _own_places(port: int, executor: OwnedExecutor) -> list[Place]:
    routed = routed_address()
    if routed is not None:
        return await places(routed, port, executor)
    try:
        found = await places(socket.gethostname(), port, executor)
    except ConfigError:
        found = []
    reachable = [place for place in found if not is_loopback(place.host)]
    if not reachable:
        _log.warning(
            "no address by which other hosts reach this one was found; only receivers on this host "
            "can connect. Set 'host' where there are others"
        )
    return reachable or await places(_LOOPBACK, port, executor)


def routed_address() -> str | None:
    """The address by which this host reaches others; ``None`` where it has no way out.

    Connecting a datagram socket looks up the route, and sends nothing.
    """
    for family, target in _PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((target, 9))
                host = str(sock.getsockname()[0])
        except OSError:
            continue
        if not is_loopback(host):
            return host
    return None


async def places(host: str, port: int, executor: OwnedExecutor) -> list[Place]:
    """What a host means, IPv4 first, for that is what most listen at.

    Raises:
        ConfigError: its name is not known; says what the name service said.

    Cancellation: safe.
    """
    if is_numeric(host):  # answered without asking anybody
        return _places(host, port, socket.AI_NUMERICHOST)
    return await executor.run(_places, host, port, 0)


def _places(host: str, port: int, flags: int) -> list[Place]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"host {host!r}: {_reason(error)}") from None
    each = [Place(int(family), tuple(sockaddr)) for family, _, _, _, sockaddr in found]
    return sorted(dict.fromkeys(each), key=lambda place: place.family != socket.AF_INET)


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror) and error.strerror:
        return error.strerror
    return str(error)


def not_here(error: OSError) -> bool:
    """Whether a bind failed because the address is no address of this machine."""
    return error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENODEV, errno.EINVAL)
