"""ZMQ dealing: one DEALER for one connection to a sender, and the line it leads to.

In: a place to connect to. Out: a line, or why there is none.
Never: connects a second time. Whoever wants another connection makes another dealing, under a routing
id that nobody has heard of: so a line is never mixed up with the one before.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import zmq

from ..abc import ChannelHandler
from ..errors import ProtocolError
from .handshake import Disagreement, disagreement, first_word
from .messages import Hello
from .turned_line import LineOptions
from .zmq_context import LAST_WORDS, close_socket, new_socket
from .zmq_hosts import Place
from .zmq_line import ZmqLine
from .zmq_monitor import BROKEN, DISCONNECTED, FORBIDDEN, RETRIED, Monitor
from .zmq_sockets import Frames, ReadySocket
from .zmq_words import Words, packed

_HELLO_LIMIT = 64 << 10
_NEVER = 24 * 3600 * 1000
"""Milliseconds until libzmq would connect again. Told not to at all, it would forget what has come."""


class DealingOwner(Protocol):
    """Who wants the line."""

    def settled(self, dealing: ZmqDealing, outcome: ZmqLine | Exception) -> None:
        """The attempt has ended."""

    def gone(self, line: ZmqLine, error: Exception | None) -> None:
        """A line that stood is over, whoever ended it."""


class ZmqDealing:
    """Connects at once; all calls come from one event loop.

    Raises:
        OSError: no more sockets are to be had.
    """

    def __init__(
        self,
        place: Place,
        hello: Hello,
        handler: ChannelHandler,
        owner: DealingOwner,
        options: LineOptions,
        prepare: Callable[[zmq.Socket[bytes]], None],
    ) -> None:
        self._place = place
        self._address = str(place.where)
        self._hello = hello
        self._handler = handler
        self._owner = owner
        self._options = options
        self._line: ZmqLine | None = None
        self._over = False
        self._cut = False  # the connection is gone
        self._detail: Exception | None = None
        self._asking: asyncio.Future[OSError] | None = None
        with ExitStack() as undo:
            try:
                dealer = new_socket(zmq.DEALER)
                undo.callback(close_socket, dealer)
                # Ids that begin with 0 are libzmq's own.
                dealer.set(zmq.ROUTING_ID, b"\1" + os.urandom(15))
                dealer.set(zmq.RECONNECT_IVL, _NEVER)
                dealer.set(zmq.CONNECT_TIMEOUT, int(options.handshake_timeout * 1000))
                dealer.set(zmq.IPV6, int(place.family == socket.AF_INET6))
                prepare(dealer)
                self._monitor = Monitor(dealer, self._happened, place.where.port)
                undo.callback(self._monitor.close)
                self._ready = ReadySocket(dealer, self._heard, self._dry)
                undo.callback(self._ready.close)
                dealer.connect(self._address)
                self._ready.send((packed(hello),))
            except zmq.ZMQError as error:
                raise OSError(error.errno, str(error)) from None
            undo.pop_all()
        self._timer = asyncio.get_running_loop().call_later(
            options.handshake_timeout, self._no_hello, options.handshake_timeout
        )

    # -- for the line ----------------------------------------------------------------------------

    def put(self, body: bytes | bytearray) -> bool:
        if self._cut:
            raise ConnectionResetError("its connection is gone")
        try:
            self._ready.send((body,))
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise ConnectionResetError(str(error)) from None
        return True

    def look(self) -> None:
        self._ready.look()

    def wait(self) -> None:
        self._ready.busy = True

    def go_on(self) -> None:
        self._ready.resume()

    def gone(self, line: ZmqLine, error: Exception | None) -> None:
        self._shut()
        self._owner.gone(line, error)

    # -- what happens ----------------------------------------------------------------------------

    def _heard(self, frames: Frames) -> None:
        if self._line is not None:
            if len(frames) == 1:
                self._ready.taken += self._line.take(frames[0].buffer)
            else:
                self._line.broken(f"a message of {len(frames)} parts came on a line")
            return
        try:
            theirs = self._hello_of(frames)
        except (ProtocolError, ConnectionError) as error:
            self._fail(error)
            return
        self._timer.cancel()
        name = f"{self._address} (process {theirs.pid})"
        self._line = ZmqLine(self, name, theirs, self._handler, self._options)
        self._owner.settled(self, self._line)
        self._line.open()

    def _hello_of(self, frames: Frames) -> Hello:
        body = frames[0].buffer
        if not body and len(frames) == 1:
            raise ConnectionResetError("it ended before its Hello")
        if len(frames) > 1 or len(body) > _HELLO_LIMIT:
            raise ProtocolError("its first message cannot be a Hello")
        word = Words(body, _HELLO_LIMIT).next()
        assert word is not None
        theirs = first_word(word, self._hello.role)
        if theirs.incarnation == self._hello.incarnation:
            # Connecting to a port where nobody listens may by chance begin at that very port.
            raise ConnectionRefusedError("nobody listens there, and the connection led back here")
        reason = disagreement(self._hello, theirs)
        if reason is not None:
            raise Disagreement(reason)
        return theirs

    def _happened(self, event: int, value: int) -> None:
        if event == RETRIED:
            # Told behind the end of a connection, too.
            if self._line is None and not self._cut and self._asking is None:
                self._asking = asyncio.ensure_future(self._place.why_not())
                self._asking.add_done_callback(self._answered)
        elif event == BROKEN:
            self._detail = ProtocolError(
                f"it does not speak ZeroMQ as this receiver does ({value:#x})"
            )
        elif event == FORBIDDEN:
            self._detail = Disagreement("it does not allow this receiver's key")
        elif event == DISCONNECTED:
            self._cut = True
            self._ready.look_soon()  # what it said last may still lie in the socket

    def _answered(self, asking: asyncio.Future[OSError]) -> None:
        if not asking.cancelled():
            self._fail(asking.result())

    def _dry(self) -> None:
        """Everything that has come has been handed over."""
        if not self._cut or self._over:
            return
        if self._line is not None:
            self._line.lost(None)
        else:
            self._fail(self._detail or ConnectionResetError("it ended before its Hello"))

    def _no_hello(self, seconds: float) -> None:
        self._fail(ProtocolError(f"no Hello within {seconds:g} s"))

    def _fail(self, error: Exception) -> None:
        if self._over:
            return
        self._shut()
        if isinstance(error, ProtocolError):
            error = type(error)(f"{self._address}: {error}", peer=self._address)
        else:
            error = type(error)(f"{self._address}: {_said(error)}")
        self._owner.settled(self, error)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up an attempt; the owner is not told. A line is closed by itself."""
        if self._line is None:
            self._shut()

    def _shut(self) -> None:
        if not self._over:
            self._over = True
            self._timer.cancel()
            if self._asking is not None:
                self._asking.cancel()
            self._monitor.close()
            self._ready.close(LAST_WORDS if self._line is not None and not self._cut else 0.0)


def _said(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
