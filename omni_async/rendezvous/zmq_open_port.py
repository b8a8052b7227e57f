"""A port at which others speak a wire of theirs: whatever comes is handed on, and may be answered.

In: host and port. Out: messages as they come, each with whom it came from.
Never: ends by what it hears, keeps answers for who has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import zmq

from .._aio.executor import OwnedExecutor
from .._aio.fork import close_in_child_by_number
from .zmq_address import HostPort
from .zmq_bind import Wanted, bind
from .zmq_context import LAST_WORDS, close_socket, new_socket
from .zmq_hosts import local_places, place_of
from .zmq_monitor import BROKEN, Monitor
from .zmq_sockets import Frames, ReadySocket

_ANSWERS = 1024
"""Messages to one peer between the event loop and its connection."""
_HANDSHAKE = 5.0
_KEEPALIVE = ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 15), (zmq.TCP_KEEPALIVE_INTVL, 5), (zmq.TCP_KEEPALIVE_CNT, 4))  # fmt: skip


class Said:
    """One message."""

    __slots__ = ("_port", "_route", "frames")

    def __init__(self, port: OpenPort, route: bytes, frames: list[bytes]) -> None:
        self.frames = frames
        self._port = port
        self._route = route

    def answer(self, frames: Sequence[bytes]) -> bool:
        """Send a message to whom it came from; ``False`` where that one has gone, or takes no more."""
        return self._port.send(self._route, frames)


class OpenPort:
    """Listens until closed."""

    def __init__(self, on_message: Callable[[Said], None], limit: int) -> None:
        self.broken = 0
        """Connections of who does not speak ZeroMQ."""
        self.unanswered = 0
        """Answers for who had gone, or took no more."""
        self._on_message = on_message
        self._limit = limit
        self._where: HostPort
        self._monitor: Monitor
        self._ready: ReadySocket

    @property
    def where(self) -> HostPort:
        """Where it listens."""
        return self._where

    async def open(self, host: str, port: int, wanted: Wanted) -> None:
        """Listen.

        Args:
            host: an address of this machine, a name of one, or ``auto``.
            port: 0 for any that is free.

        Raises:
            UsageError: somebody listens there already; names the process.
            ConfigError: it is no address of this machine.

        Cancellation: safe; nothing is bound.
        """
        executor = OwnedExecutor("omni-async-names", 1)
        try:
            sock = await bind(await local_places(host, port, executor), wanted, executor)
        finally:
            executor.close()
        self._where = place_of(sock).where
        with ExitStack() as undo:
            undo.callback(sock.close)
            router = new_socket(zmq.ROUTER)
            undo.callback(close_socket, router)
            router.set(zmq.ROUTER_MANDATORY, 1)
            router.set(zmq.SNDHWM, _ANSWERS)
            router.set(zmq.RCVHWM, _ANSWERS)
            router.set(zmq.MAXMSGSIZE, self._limit)
            router.set(zmq.HANDSHAKE_IVL, int(_HANDSHAKE * 1000))
            for option, value in _KEEPALIVE:
                router.set(option, value)
            self._monitor = Monitor(router, self._happened, self._where.port)
            undo.callback(self._monitor.close)
            self._ready = ReadySocket(router, self._heard)
            undo.callback(self._ready.close)
            router.set(zmq.USE_FD, sock.fileno())
            router.bind(
                f"tcp://127.0.0.1:{self._where.port}"
            )  # for the form: where it is bound stands
            close_in_child_by_number(sock.detach())
            undo.pop_all()

    def _heard(self, frames: Frames) -> None:
        self._on_message(Said(self, frames[0].bytes, [frame.bytes for frame in frames[1:]]))

    def _happened(self, event: int, value: int) -> None:
        self.broken += event == BROKEN

    def send(self, route: bytes, frames: Sequence[bytes]) -> bool:
        if self._ready.open:
            with suppress(zmq.ZMQError):
                self._ready.send((route, *frames))
                return True
        self.unanswered += 1
        return False

    def close(self) -> None:
        """Stop listening, and end all connections. Idempotent."""
        if self._ready.open:
            self._monitor.close()
            self._ready.close(LAST_WORDS)
