"""Addresses and ports: of this host or not, free or not, reachable or not.

In: hosts and ports. Out: facts.
Never: leaves a socket open, sends a byte, waits longer than it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from ..._aio.executor import OwnedExecutor
from ...abc import Sight

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 3.0
"""Seconds for one question."""


class Unanswered(Exception):
    """A question to the network was not answered in time, or cannot be; says why."""


class Network:
    """Questions that may block, each with its limit. Close it."""

    def __init__(self) -> None:
        self._executor = OwnedExecutor("doctor-network", 16)

    async def local(self, host: str) -> bool:
        """Whether a name or an address means this host.

        Raises:
            Unanswered: nobody knows the name.

        Cancellation: safe.
        """
        return await self._within(_local, host)

    async def listening(self, host: str, port: int) -> str | None:
        """Why one cannot listen there; ``None`` where one can. Cancellation: safe."""
        return await self._within(_unfree, host, port)

    async def reach(self, host: str, port: int) -> OSError | None:
        """Why nobody could be connected to; ``None`` where somebody was.

        Raises:
            Unanswered: nobody knows the name, or it takes too long to find that out.

        Cancellation: safe.
        """
        return await self._within(_unreachable, host, port)

    def close(self) -> None:
        """Forget what is still asked."""
        self._executor.close()

    async def _within(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.wait_for(self._executor.run(call, *args, **kwargs), LIMIT + 1)
        except (TimeoutError, asyncio.TimeoutError):
            raise Unanswered(f"no answer about {args[0]!r} within {LIMIT + 1:g} s") from None


def _addresses(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Unanswered(f"nobody knows {host!r} ({why})") from None
    return [(int(family), tuple(where)) for family, _, _, _, where in found]


def _local(host: str) -> bool:
    for family, where in _addresses(host, 0):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind(where)
            return True
    return False


def _unfree(host: str, port: int) -> str | None:
    for family, where in _addresses(host, port):
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            # As who listens there later does; a listener is in the way all the same.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(where)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    holder = holder_of(port)
                    return f"{host}:{port} is taken" + (f" by {holder}" if holder else "")
                if error.errno == errno.EACCES:
                    return f"{host}:{port} is for root alone"
                return f"nobody can listen at {host}:{port} here ({error.strerror})"
    return None


def _unreachable(host: str, port: int) -> OSError | None:
    failed: OSError | None = None
    for family, where in _addresses(host, port):
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(LIMIT / 2)
            try:
                sock.connect(where)
            except OSError as error:
                failed = error
            else:
                return None
    return failed


def holder_of(port: int) -> str:
    """The process that listens at a port, as far as this user may know; else empty."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if inodes and os.readlink(descriptor) in inodes:
                        name = (process / "comm").read_text().strip()
                        return f"process {process.name} ({name})"
    return ""


def given_out(sight: Sight, port: int) -> bool:
    """Whether the kernel may give this port to whoever asks for any."""
    between = re.findall(r"\d+", sight.text("proc/sys/net/ipv4/ip_local_port_range"))
    if len(between) != 2 or not int(between[0]) <= port <= int(between[1]):
        return False
    for part in sight.text("proc/sys/net/ipv4/ip_local_reserved_ports").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and int(first) <= port <= int(last or first):
            return False
    return True
