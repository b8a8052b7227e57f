"""Fork: what a forked child must not keep.

In: sockets of this process. Out: nothing in this process; in a forked child they are closed.
Never: touches the parent's sockets, event loop or threads.

A child that keeps a copy of a socket keeps the line open after its parent was killed, and the peer
does not learn of the death.
"""

from __future__ import annotations

import os
import socket
import weakref

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_generation = 0


def close_in_child(sock: socket.socket) -> None:
    """Let a child that is forked from now on close its copy of ``sock``."""
    _sockets.add(sock)


def generation() -> int:
    """Changes in a forked child: what was made under another number belongs to the parent."""
    return _generation


def _after_fork() -> None:
    global _generation
    _generation += 1
    for sock in list(_sockets):
        sock.close()
    _sockets.clear()


os.register_at_fork(after_in_child=_after_fork)
