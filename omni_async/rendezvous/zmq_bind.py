"""Binding a port: a listening TCP socket, or the name of who has it.

In: places to listen at, best first. Out: a listening socket.
Never: takes a port from a living process, leaves a socket behind when it fails.

The socket is bound here, not by libzmq: so what the kernel says about it is known exactly, and a
failed bind leaves nothing half started.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from .._aio.executor import OwnedExecutor
from ..errors import ConfigError, UsageError
from .zmq_address import HostPort
from .zmq_holder import holder_of
from .zmq_hosts import Place, not_here

_BACKLOG = 1024
_WAITS = (0.0, 0.005, 0.02, 0.1, 0.3)
"""Who holds the port may be about to die, or to close it: both take a moment."""


class Wanted(NamedTuple):
    """Who is to listen, and what changes where."""

    who: str
    host_option: str = "host"
    port_options: str = "zmq_port, port_scheme, rank or replica"


async def bind(places: Sequence[Place], wanted: Wanted, executor: OwnedExecutor) -> socket.socket:
    """A socket that listens at the first of the places that is one of this machine's.

    Raises:
        UsageError: somebody listens there already; names the process.
        ConfigError: none of them is an address of this machine, or this user may not have the port.

    Cancellation: safe; nothing is bound.
    """
    where = places[0].where
    for wait in _WAITS:
        await asyncio.sleep(wait)
        try:
            return _bind(places)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _impossible(where, wanted, error) from None
    raise await executor.run(_in_use, where, wanted)


def _bind(places: Sequence[Place]) -> socket.socket:
    for number, place in enumerate(places):
        try:
            sock = socket.socket(place.family, socket.SOCK_STREAM)
            try:
                # Lines of a process that was killed may linger at the port; nobody listens there.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setblocking(False)
                sock.bind(place.sockaddr)
                sock.listen(_BACKLOG)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            if not not_here(error) or number == len(places) - 1:
                raise
        else:
            return sock
    raise AssertionError("a host has at least one place")


def _in_use(where: HostPort, wanted: Wanted) -> UsageError:
    holder = holder_of(where.port)
    if holder is None:
        who = "is taken, and nobody listens there; something holds the port without using it"
    elif holder.pid == os.getpid():
        who = "is served by this process already; close that one"
    else:
        who = f"is served by {holder} already; stop that one"
    return UsageError(
        f"port {where.port} for {wanted.who} cannot be bound: {where} {who}, or give this one another "
        f"port ({wanted.port_options})"
    )


def _impossible(where: HostPort, wanted: Wanted, error: OSError) -> ConfigError:
    if not_here(error):
        reason = "that is no address of this machine; write one of its own, or 'auto'"
    elif error.errno in (errno.EACCES, errno.EPERM):
        reason = f"user {os.geteuid()} may not bind port {where.port}; take one above 1023"
    else:
        reason = os.strerror(error.errno or 0)
    return ConfigError(f"{wanted.host_option}: {wanted.who} cannot listen at {where}: {reason}")
