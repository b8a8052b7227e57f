"""Beats: one message, said again and again to one address, by a thread of its own.

In: an address, a message. Out: whether there is somebody who takes it.
Never: waits for an answer, heaps up what nobody takes, is late because the event loop is.

Who is told may come and go: there is always one connection, or an attempt at one, and as soon as it
stands the message is sent over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

import zmq

from .._aio.executor import OwnedExecutor
from ..errors import ClosedError
from ..observe.log import get_logger
from .zmq_address import HostPort, is_numeric
from .zmq_context import close_socket, new_socket

_log = get_logger("omni_async.rendezvous")

_OUT = int(zmq.POLLOUT)
_PATIENCE = 0.3
"""Seconds after which nobody takes it."""
_MOMENTS = 1.0
_NAMES_LAST = 1.0
"""Seconds after which a name is looked up anew while nobody is there: a restarted pod has another address."""
_RECONNECT, _RECONNECT_MAX = 50, 400
_CONNECT = 3000
_UNHEARD = 5000
"""Milliseconds after which a connection on which nothing is acknowledged is over."""

Place = tuple[int, str]
"""Family, and an address as zmq has it."""


class Beats:
    """Begins at once, ends with :meth:`aclose`.

    Args:
        where: whom to tell.
        body: what.
        interval: seconds between two times.
        on_change: told on the event loop, whenever that changes, whether somebody takes it.
    """

    def __init__(
        self,
        where: HostPort,
        body: bytes,
        interval: float,
        on_change: Callable[[bool], None] = lambda taken: None,
    ) -> None:
        self.sent = 0
        self._taken: bool | None = None
        self._where = where
        self._body = body
        self._interval = interval
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._executor = OwnedExecutor("omni-async-beats", 1)
        self._end = self._executor.run(self._beat, self._stop)
        self._end.add_done_callback(self._ended)

    @property
    def taken(self) -> bool:
        """Whether somebody was there at the last time."""
        return bool(self._taken)

    async def aclose(self) -> None:
        """Say it no more. Idempotent.

        Returns within moments: a name service that does not answer is left to the thread, which ends when it does.

        Cancellation: safe; nothing is said any more.
        """
        if self._stop >= 0:
            os.eventfd_write(self._stop, 1)
            await asyncio.wait((self._end,), timeout=_MOMENTS)
        self._executor.close()

    def _ended(self, end: asyncio.Future[None]) -> None:
        os.close(self._stop)
        self._stop = -1
        error = None if end.cancelled() else end.exception()
        if error is not None and not isinstance(error, ClosedError):
            self._tell(False)
            _log.error("beats have ended", where=str(self._where), reason=repr(error))

    # -- in the thread ---------------------------------------------------------------------------

    def _beat(self, stop: int) -> None:
        dealer: zmq.Socket[bytes] | None = None
        there: Place | None = None
        sent = False
        try:
            while True:
                if not sent:
                    place = self._look_up() or there
                    if place != there or dealer is None:
                        _close(dealer)
                        dealer, there = _connected(place), place
                sent = self._sent(stop, dealer)
                if _stopped(stop, None, self._interval if sent else 0):
                    return
        finally:
            _close(dealer)

    def _sent(self, stop: int, dealer: zmq.Socket[bytes] | None) -> bool:
        """Send it once, unless nobody takes it for a while."""
        for patience in (_PATIENCE, _NAMES_LAST):
            if _stopped(stop, dealer, patience):
                return False
            if dealer is not None and int(dealer.get(zmq.EVENTS)) & _OUT:
                with contextlib.suppress(zmq.Again):  # its connection has ended this moment
                    dealer.send(self._body, zmq.NOBLOCK)
                    self.sent += 1
                    self._tell(True)
                    return True
            self._tell(False)
        return False

    def _tell(self, taken: bool) -> None:
        if taken is not self._taken:
            self._taken = taken
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody listens
                self._loop.call_soon_threadsafe(self._on_change, taken)

    def _look_up(self) -> Place | None:
        """Family and address of the host, IPv4 first; ``None`` where its name is not known now."""
        host, port = self._where
        if is_numeric(host):
            return (socket.AF_INET6 if ":" in host else socket.AF_INET), str(self._where)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return None
        family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        return family, str(HostPort(str(address[0]), port))


def _close(dealer: zmq.Socket[bytes] | None) -> None:
    if dealer is not None:
        close_socket(dealer)


def _stopped(stop: int, dealer: zmq.Socket[bytes] | None, seconds: float) -> bool:
    """Wait until it is to stop, or something can be sent; whether it is to stop."""
    poller = zmq.Poller()
    poller.register(stop, zmq.POLLIN)
    if dealer is not None:
        poller.register(dealer, zmq.POLLOUT)
    return stop in dict(poller.poll(int(seconds * 1000)))


def _connected(place: Place | None) -> zmq.Socket[bytes] | None:
    """``None`` where there is no place, or no way there now."""
    if place is None:
        return None
    family, address = place
    dealer = None
    try:
        dealer = new_socket(zmq.DEALER)
        dealer.set(
            zmq.IMMEDIATE, 1
        )  # what is sent before there is a connection would be old by then
        dealer.set(zmq.SNDHWM, 2)
        dealer.set(zmq.RECONNECT_IVL, _RECONNECT)
        dealer.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX)
        dealer.set(zmq.CONNECT_TIMEOUT, _CONNECT)
        dealer.set(zmq.HANDSHAKE_IVL, _CONNECT)
        dealer.set(zmq.TCP_MAXRT, _UNHEARD)
        dealer.set(zmq.IPV6, int(family == socket.AF_INET6))
        dealer.connect(address)
    except zmq.ZMQError:
        _close(dealer)
        return None
    return dealer
