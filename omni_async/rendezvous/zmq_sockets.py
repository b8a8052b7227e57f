"""Ready sockets: raw zmq sockets on an event loop, without futures and without a thread.

In: a zmq socket. Out: its messages, told to a callback.
Never: blocks, loses a message to a cancelled wait, polls.

Two lines are a client::

    ready = ReadySocket(connected_dealer, lambda frames: print(frames[-1].bytes))
    ready.send([b"", b"a request"])

A zmq socket has a descriptor that tells of *changes*, and any call on the socket may swallow the
telling. So whoever is told reads until nothing is left, and looks again after having sent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from .zmq_context import close_socket

_EVENTS = int(zmq.EVENTS)
_IN = int(zmq.POLLIN)
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_LOOKS = 8
"""Messages after which it is cheaper to run into an ``Again`` than to ask before each."""
_PER_TURN = 256
"""Messages taken before others on the loop get their turn."""

Frames = list[zmq.Frame]

_all: weakref.WeakSet[ReadySocket] = weakref.WeakSet()


class ReadySocket:
    """Owns a zmq socket for as long as it is open; all calls come from one event loop.

    Args:
        socket: bound, connected, or about to be.
        on_message: hears each message, as its frames. What it raises reaches the loop's exception
            handler and stops nothing.
        on_dry: called whenever everything that has come was taken.

    While ``on_message`` runs it may set :attr:`busy`, and no further message is taken until
    :meth:`resume`; and it may add to :attr:`taken` where a message was worth several.
    """

    __slots__ = ("__weakref__", "_fd", "_get", "_inside", "_looking", "_loop", "_on_dry", "_on_message", "busy", "socket", "taken")  # fmt: skip

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_message: Callable[[Frames], None],
        on_dry: Callable[[], None] | None = None,
    ) -> None:
        self.socket = socket
        self.busy = False
        self.taken = 0
        """In this turn of the loop."""
        self._on_message = on_message
        self._on_dry = on_dry
        self._loop = asyncio.get_running_loop()
        self._inside = False
        self._looking = False  # a look is scheduled
        get: Any = socket.get
        self._get: Callable[[int], Any] = get
        self._fd: int = get(zmq.FD)
        self._loop.add_reader(self._fd, self.look)
        _all.add(self)
        self.look_soon()  # what has come before this was told to nobody

    @property
    def open(self) -> bool:
        return self._fd >= 0

    # -- sending ---------------------------------------------------------------------------------

    def send(self, frames: Sequence[bytes | bytearray | memoryview]) -> None:
        """Send one message, now; frames are copied.

        Raises:
            zmq.Again: no more is taken for now.
            zmq.ZMQError: with ``EHOSTUNREACH`` where a mandatory ROUTER does not know the address.
        """
        if self._fd < 0:
            raise zmq.ZMQError(errno.ENOTSOCK)
        send = self.socket.send
        for frame in frames[:-1]:
            send(frame, _MORE)
        send(frames[-1], _NOW)
        if not self._looking:
            self.look_soon()

    # -- receiving -------------------------------------------------------------------------------

    def look(self) -> None:
        """Take what has come. Also to be called when somebody cannot wait for the loop's next turn."""
        self._looking = False
        if self._inside or self.busy or self._fd < 0:
            return
        self._inside = True
        self.taken = 0
        looks = _LOOKS
        try:
            while self.taken < _PER_TURN:
                frames = self._next(ask=looks > 0)
                if frames is None:
                    break
                looks -= 1
                self.taken += 1
                self._on_message(frames)
                if self.busy or self._fd < 0:
                    return
            else:
                self.look_soon()
                return
        except BaseException:
            self.look_soon()  # messages behind this one must not wait for another to come
            raise
        finally:
            self._inside = False
        if self._on_dry is not None:
            self._on_dry()

    def _next(self, *, ask: bool) -> Frames | None:
        socket = self.socket
        if ask and not self._get(_EVENTS) & _IN:
            return None
        try:
            frame = socket.recv(_NOW, False)
        except zmq.Again:
            return None
        frames = [frame]
        while frame.more:
            frame = socket.recv(_NOW, False)
            frames.append(frame)
        return frames

    def resume(self) -> None:
        """Go on after :attr:`busy`, in a later turn of the loop."""
        self.busy = False
        self.look_soon()

    def look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self.look)

    # -- the end ---------------------------------------------------------------------------------

    def close(self, linger: float = 0.0) -> None:
        """Close; what was sent has ``linger`` seconds to leave. Does not wait. Idempotent."""
        if self._fd < 0:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._fd = -1
        close_socket(self.socket, linger)


def _leave_to_parent() -> None:
    """In a forked child: to ask a socket would take the answer from the parent's, and so would its
    event loop, whose epoll is the parent's too."""
    for ready in list(_all):
        ready._fd = -1
    _all.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
