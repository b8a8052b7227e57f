"""ZMQ channels: words between processes on any hosts.

In: plain values: hosts, ports, limits, keys. Out: listeners and dialers over TCP.
Never: carries payloads: those travel by an engine, on connections of their own.

A sender has one ROUTER for all of its receivers; a receiver has one DEALER for each sender.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import zmq

from .._aio.executor import OwnedExecutor
from ..abc import ChannelHandler, Channels
from ..model import Endpoint
from ..observe.log import get_logger
from .framing import MAX_MESSAGE
from .messages import Hello
from .turned_line import LineOptions
from .zmq_address import HostPort, is_loopback, parsed
from .zmq_bind import Wanted, bind
from .zmq_context import close_socket, new_socket
from .zmq_curve import Curve, SenderKeys
from .zmq_dialer import ZmqDialer
from .zmq_hosts import local_places, place_of
from .zmq_line import ZmqLine
from .zmq_listener import ZmqListener
from .zmq_window import MESSAGES
from .zmq_words import longest_message
from .zmq_zap import Gate

__all__ = ["Curve", "ZmqChannels", "ZmqDialer", "ZmqLine", "ZmqListener"]

_log = get_logger("omni_async.rendezvous")

_LIMIT = 4 * MESSAGES
"""Messages between libzmq and the event loop, each way. No line gets here: its window is full before.
Others may: who takes no answers, or sends more than is read."""
_KEEPALIVE = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 15),
    (zmq.TCP_KEEPALIVE_INTVL, 5),
    (zmq.TCP_KEEPALIVE_CNT, 4),
)
"""Lines know of silence by themselves; this ends connections that have none."""


class ZmqChannels(Channels):
    """Words over ZeroMQ.

    Args:
        host: where a sender listens: a name, an address, or ``auto`` for the address by which this
            host reaches others.
        port: the sender's port; with 0 any that is free.
        sender_host: where a receiver finds its sender; by default at ``host``.
        sender_port: likewise; ``None`` where it has to be told.
        silent_after: seconds without a sign of life after which ``silent`` is told.
        peer_timeout: seconds after which it is told again.
        max_message: bytes of the largest word.
        handshake_timeout: seconds a peer may take for its first word.
        curve: arguments of :class:`Curve`, where words are to be encrypted and receivers known.
    """

    def __init__(
        self,
        host: str = "auto",
        port: int = 0,
        *,
        sender_host: str | None = None,
        sender_port: int | None = None,
        silent_after: float = 2.0,
        peer_timeout: float = 30.0,
        max_message: int = MAX_MESSAGE,
        handshake_timeout: float = 5.0,
        curve: Mapping[str, Any] | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._sender = None
        where = sender_host or (None if host == "auto" else host)
        if where is not None and sender_port is not None:
            self._sender = HostPort(where, sender_port)
        self._options = LineOptions(silent_after, peer_timeout, max_message, handshake_timeout)
        self._curve = None if curve is None else Curve(**curve)

    def address_of(self, endpoint: Endpoint) -> str | None:
        """``tcp://…`` of the sender that was configured, whichever endpoint is meant."""
        return None if self._sender is None else str(self._sender)

    async def listen(
        self, endpoint: Endpoint, hello: Hello, handler: ChannelHandler
    ) -> ZmqListener:
        """Bind the sender's address.

        Raises:
            UsageError: a living process listens there; names it and what to change.
            ConfigError: the host is no address of this machine, or a key cannot be used.

        Cancellation: safe; nothing is bound.
        """
        keys = None if self._curve is None else self._curve.for_sender()
        executor = OwnedExecutor("omni-async-names", 1)
        try:
            found = await local_places(self._host, self._port, executor)
            sock = await bind(found, Wanted(str(endpoint)), executor)
        finally:
            executor.close()
        where = place_of(sock).where
        if keys is None and not is_loopback(where.host):
            _log.warning(
                "words to and from other hosts are not encrypted, and anybody who reaches this port may "
                "ask for payloads; set 'curve' unless the network is trusted",
                address=str(where),
            )
        try:
            return self._listener(sock, where, hello, handler, keys)
        except BaseException:
            sock.close()
            raise

    def _listener(
        self,
        sock: socket.socket,
        where: HostPort,
        hello: Hello,
        handler: ChannelHandler,
        keys: SenderKeys | None,
    ) -> ZmqListener:
        """Takes over the socket when it succeeds, and leaves nothing behind when it does not."""
        with ExitStack() as undo:
            gate = None
            if keys is not None:
                gate = Gate(keys)
                undo.callback(gate.close)
            router = new_socket(zmq.ROUTER, gate.context if gate is not None else None)
            undo.callback(close_socket, router)
            router.set(zmq.ROUTER_MANDATORY, 1)
            router.set(zmq.SNDHWM, _LIMIT)
            self._prepare(router)
            if gate is not None:
                gate.guard(router)
            listener = ZmqListener(router, where, hello, handler, self._options, gate)
            undo.callback(listener.close)
            listener.bind(sock)
            undo.pop_all()
        return listener

    def _prepare(self, socket: zmq.Socket[bytes]) -> None:
        """What both ends have in common."""
        socket.set(zmq.MAXMSGSIZE, longest_message(self._options.max_message))
        socket.set(zmq.RCVHWM, _LIMIT)
        socket.set(zmq.HANDSHAKE_IVL, int(self._options.handshake_timeout * 1000))
        for option, value in _KEEPALIVE:
            socket.set(option, value)

    def dial(self, address: str, hello: Hello, handler: ChannelHandler) -> ZmqDialer:
        """Begin to keep a channel to ``address``.

        Raises:
            UsageError: not the address of a sender.
            ConfigError: a key cannot be used.
        """
        where = parsed(address)
        keys = None if self._curve is None else self._curve.for_receiver()

        def prepare(dealer: zmq.Socket[bytes]) -> None:
            dealer.set(zmq.SNDHWM, 0)
            self._prepare(dealer)
            if keys is not None:
                keys.unlock(dealer)

        return ZmqDialer(where, hello, handler, self._options, prepare)
