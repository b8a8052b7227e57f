"""Unix bind: a listening socket at an address that nobody living holds.

In: an address, and whose it is. Out: a listening socket, or ``UsageError`` naming who is there.
Never: takes a name from a living process, leaves a lock file, opens a socket to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator

from ..errors import ConfigError, UsageError
from ..model import Endpoint
from .unix_address import is_path, path_of, socket_name
from .unix_peer import Peer, peer_of

_BACKLOG = 1024
_LOCK_WAITS = (0.001, 0.01, 0.1, 0.5, 1.0)
_WAITS = (0.0, 0.005, 0.02, 0.1)
"""Who holds the name may be about to die: killed processes close their sockets one by one."""


async def bind(address: str, endpoint: Endpoint) -> socket.socket:
    """A socket that listens at ``address``.

    Raises:
        UsageError: a living process holds it; names the process, its user, and what to change.
        ConfigError: the folder is missing, not this user's, or others may write to it.

    Cancellation: safe; nothing is bound.
    """
    attempt = _bind_path if is_path(address) else _bind_name
    holder: Peer | None = None
    for wait in _WAITS:
        await asyncio.sleep(wait)
        outcome = await attempt(address)
        if isinstance(outcome, socket.socket):
            return outcome
        holder = outcome
        if holder is not None and holder.pid == os.getpid():
            break
    raise _in_use(address, endpoint, holder)


def probe(address: str) -> Peer | None:
    """Who listens at an address, by a connection that is dropped at once; ``None`` for nobody."""
    with _new_socket() as sock:
        try:
            sock.connect(socket_name(address))
        except BlockingIOError:  # so many wait to be accepted that no more may
            return Peer(0, os.geteuid())
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        return peer_of(sock)


def _new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock


async def _bind_name(address: str) -> socket.socket | Peer | None:
    sock = _new_socket()
    try:
        sock.bind(socket_name(address))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return probe(address)
        raise
    return sock


async def _bind_path(address: str) -> socket.socket | Peer | None:
    path = path_of(address)
    with _folder(os.path.dirname(path)) as folder:
        await _lock(folder, path)
        # No await from here on: the lock is held for some microseconds.
        holder = _holder_of_file(address, path)
        if holder is not None:
            return holder
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        sock = _new_socket()
        try:
            sock.bind(path)
            os.chmod(path, 0o600)
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            raise ConfigError(f"no socket can be made at {path!r}: {error}") from error
        return sock


def _holder_of_file(address: str, path: str) -> Peer | None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path!r} exists and is not a socket; remove it or change socket_dir")
    return probe(address)


@contextlib.contextmanager
def _folder(path: str) -> Iterator[int]:
    """The folder's descriptor. It is made when missing; only this user may be able to write to it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"socket_dir {path!r} cannot be used: {error}") from error
    try:
        facts = os.fstat(fd)
        mine = os.geteuid()
        own = os.path.join(path, f"omni-async-{mine}")
        if facts.st_uid != mine:
            raise ConfigError(
                f"socket_dir {path!r} belongs to user {facts.st_uid}, this process to user {mine}; "
                f"name a folder of your own, such as {own!r} (made when missing)"
            )
        if facts.st_mode & 0o022:
            raise ConfigError(
                f"others may write to socket_dir {path!r} (mode {stat.S_IMODE(facts.st_mode):o}); "
                f"chmod 700 it, or name a folder inside it, such as {own!r} (made when missing)"
            )
        yield fd
    finally:
        os.close(fd)


async def _lock(folder: int, path: str) -> None:
    """Lock the folder itself, so that no lock file is left behind; closing it unlocks."""
    for wait in _LOCK_WAITS:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(wait)
        except OSError as error:
            raise ConfigError(f"the folder of {path!r} cannot be locked: {error}") from error
    raise UsageError(f"the folder of {path!r} stays locked by another process that starts there")


def _in_use(address: str, endpoint: Endpoint, holder: Peer | None) -> UsageError:
    if holder is None:
        return UsageError(
            f"{address} for {endpoint} is bound by a process that does not listen; "
            f"stop it, or use another namespace, rank or replica"
        )
    mine = os.geteuid()
    if holder.uid != mine:
        return UsageError(
            f"{address} for {endpoint} is held by {holder} of another user ({holder.uid}, this "
            f"process belongs to user {mine}); stop it, use another namespace, or set socket_dir "
            f"to a folder of your own"
        )
    who = "this process" if holder.pid == os.getpid() else str(holder)
    return UsageError(
        f"{endpoint} is served by {who} already ({address}): one sender per namespace, stage, "
        f"rank and replica; close that one, or use another namespace, rank or replica"
    )
