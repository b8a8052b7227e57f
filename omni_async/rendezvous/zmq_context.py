"""The zmq context of this process: one I/O thread, and the sockets that are made in it.

In: kinds of sockets. Out: sockets.
Never: is terminated, which may wait for a peer; is touched by a forked child.

What was closed a moment ago is still on its way when the process ends: its end waits some hundredths
of a second for that, and for nothing else.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

import zmq

from .._aio.fork import generation

MAX_SOCKETS = 16_384
"""A line of a dialer takes three."""
LAST_WORDS = 0.3
"""Seconds that the last words of a closed socket may take to leave."""
_GRACE = 0.05


class _Shared:
    """The context of this process, and of which process it is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.generation = -1
        self.inherited: list[object] = []
        """Contexts of parents. To drop one would end it, and its threads are not here."""
        self.closed_at = 0.0


_shared = _Shared()


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context of its own, for who must not share one."""
    context = zmq.Context(1)
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """The context of this process; from any thread."""
    with _shared.lock:
        if _shared.context is None or _shared.generation != generation():
            if _shared.context is not None:
                _shared.inherited.append(_shared.context)
            _shared.context = new_context()
            _shared.generation = generation()
        return _shared.context


def new_socket(
    kind: int, context: zmq.Context[zmq.Socket[bytes]] | None = None
) -> zmq.Socket[bytes]:
    """A socket that belongs to the calling thread, and does not linger unless told to."""
    socket = (context or shared_context()).socket(kind)
    socket.set(zmq.LINGER, 0)
    return socket


def close_socket(socket: zmq.Socket[bytes], linger: float = 0.0) -> None:
    """Close, and give what was sent ``linger`` seconds to leave. Does not wait. Idempotent."""
    if not socket.closed:
        socket.close(int(linger * 1000))
        if linger:
            _shared.closed_at = time.monotonic()


def _forget_lock() -> None:
    _shared.lock = threading.Lock()  # another thread of the parent may have held it


def _last_words() -> None:
    """At exit: libzmq's thread ends with the process, whatever it still has to write."""
    if _shared.closed_at:
        left = _shared.closed_at + _GRACE - time.monotonic()
        if left > 0:
            time.sleep(left)


os.register_at_fork(after_in_child=_forget_lock)
atexit.register(_last_words)
