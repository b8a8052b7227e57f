"""Monitor: what happens to the connections of a zmq socket.

In: a zmq socket before it is bound or connected. Out: connections by descriptor as they come and go.
Never: lets libzmq's thread wait for the event loop, leaves a forked child holding a connection.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Callable

import zmq

from .._aio.fork import close_in_child_by_number, keep_in_child
from .zmq_context import close_socket, new_socket
from .zmq_sockets import Frames, ReadySocket

ACCEPTED = int(zmq.EVENT_ACCEPTED)
CONNECTED = int(zmq.EVENT_CONNECTED)
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
RETRIED = int(zmq.EVENT_CONNECT_RETRIED)
"""An attempt to connect has failed; the next one is set to be never."""
NO_DETAIL = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
BROKEN = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
"""Before it ends: the other side does not speak ZeroMQ as this one does."""
FORBIDDEN = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_EVENTS = ACCEPTED | CONNECTED | DISCONNECTED | RETRIED | BROKEN | FORBIDDEN
_WORD = struct.Struct("=Hi")

_names = itertools.count()


class Monitor:
    """Hears of a socket's connections until closed; calls back on the event loop.

    Args:
        on_event: gets the event, and a descriptor or a detail.
        port: where the socket listens, or connects to.
    """

    def __init__(
        self,
        watched: zmq.Socket[bytes],
        on_event: Callable[[int, int], None],
        port: int,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self._watched = watched
        self._on_event = on_event
        self._port = port
        name = f"inproc://omni-async-monitor-{os.getpid()}-{next(_names)}"
        pair = new_socket(zmq.PAIR, context)
        try:
            pair.set(zmq.RCVHWM, 0)  # libzmq's thread would wait where there is no more room
            watched.monitor(name, _EVENTS)
            try:
                pair.connect(name)
                self._ready = ReadySocket(pair, self._heard)
            except BaseException:
                watched.monitor(None, 0)
                raise
        except BaseException:
            close_socket(pair)
            raise

    def look(self) -> None:
        """Hear now of what has happened so far."""
        self._ready.look()

    def _heard(self, frames: Frames) -> None:
        event, value = _WORD.unpack(frames[0].buffer[: _WORD.size])
        if event in (ACCEPTED, CONNECTED):
            if self._is_ours(value):
                close_in_child_by_number(value)
        elif event == DISCONNECTED:
            keep_in_child(value)
        self._on_event(event, value)

    def _is_ours(self, fd: int) -> bool:
        """The connection may be over, and its number that of something else."""
        try:
            copy = os.dup(fd)
        except OSError:
            return False
        try:
            sock = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            return False
        with sock:
            try:
                names = sock.getsockname(), sock.getpeername()
            except OSError:
                return False
        return any(isinstance(name, tuple) and name[1] == self._port for name in names)

    def close(self) -> None:
        """Hear no more. Before the watched socket is closed. Idempotent."""
        if self._ready.open:
            # In this order: libzmq's thread waits for ever on a pair that has one end.
            self._watched.monitor(None, 0)
            self._ready.close()
