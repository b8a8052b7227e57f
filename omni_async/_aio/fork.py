"""Fork: what a forked child must not keep.

In: sockets of this process. Out: nothing in this process; in a forked child they are closed.
Never: touches the parent's sockets, event loop or threads.

A child that keeps a copy of a socket keeps the line open after its parent was killed, and the peer
does not learn of the death.
"""

from __future__ import annotations

import os
import socket
import stat
import weakref

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_numbers: dict[int, tuple[int, int]] = {}
"""Descriptors that belong to a library, and which socket each of them was."""
_crowd = 64
_generation = 0


def close_in_child(sock: socket.socket) -> None:
    """Let a child that is forked from now on close its copy of ``sock``."""
    _sockets.add(sock)


def close_in_child_by_number(fd: int) -> None:
    """The same for a socket that a library opened, and will close when it likes."""
    global _crowd
    identity = _identity(fd)
    if identity is not None:
        _numbers[fd] = identity
    if len(_numbers) > _crowd:
        for old, known in list(_numbers.items()):
            if _identity(old) != known:
                del _numbers[old]
        _crowd = max(64, 2 * len(_numbers))


def keep_in_child(fd: int) -> None:
    """That socket is no more, or about to be closed; the number may soon be somebody else's."""
    _numbers.pop(fd, None)


def _identity(fd: int) -> tuple[int, int] | None:
    """Which socket has this number now; ``None`` where it is none."""
    try:
        facts = os.fstat(fd)
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino) if stat.S_ISSOCK(facts.st_mode) else None


def generation() -> int:
    """Changes in a forked child: what was made under another number belongs to the parent."""
    return _generation


def _after_fork() -> None:
    global _generation
    _generation += 1
    for sock in list(_sockets):
        sock.close()
    _sockets.clear()
    for fd, known in _numbers.items():
        if _identity(fd) == known:
            os.close(fd)
    _numbers.clear()


os.register_at_fork(after_in_child=_after_fork)
