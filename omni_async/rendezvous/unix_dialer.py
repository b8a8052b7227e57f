"""Unix dialer: keeps one line to one address.

In: an address. Out: a line whenever somebody of this user listens there and agrees.
Never: gives up before it is closed, wakes more often than twenty times a second while nobody is there.
"""

from __future__ import annotations

import asyncio
import socket

from ..abc import Channel, ChannelHandler, Dialer
from ..errors import ProtocolError
from .handshake import Disagreement
from .messages import Hello
from .unix_address import socket_name
from .unix_line import LineOptions, UnixLine
from .unix_peer import same_user

_FIRST_DELAY = 0.001
_LONGEST_DELAY = 0.05
_REFUSED_DELAY = 0.5
"""After a broken handshake: the same peer is not likely to agree in a millisecond."""
_STEADY = 1.0
"""Seconds a line must have stood for the back-off to begin anew."""


class UnixDialer(Dialer):
    """Connects, and connects again after the line has ended, until closed."""

    def __init__(
        self, address: str, hello: Hello, handler: ChannelHandler, options: LineOptions
    ) -> None:
        self.address = address
        self.channel: Channel | None = None
        self._name = socket_name(address)
        self._hello = hello
        self._handler = handler
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._delay = _FIRST_DELAY
        self._since = 0.0
        self._refusals = 0
        """Disagreements one after another."""
        self._error: Exception | None = None
        self._trial: UnixLine | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self._connect()

    def refused(self) -> Exception | None:
        """What the last attempt ran into: ``OSError`` for nobody there, else ``ProtocolError``."""
        return self._error

    async def attempt(self) -> Channel | None:
        """Try once, now, unless there is a channel; ``None`` when nobody is there.

        Cancellation: safe.
        """
        if self.channel is not None or self._closed:
            return self.channel
        if self._trial is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._connect()
        if self._trial is not None:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self.channel

    def _connect(self) -> None:
        self._timer = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor is left
            self._failed(error)
            return
        try:
            sock.setblocking(False)
            sock.connect(self._name)
            peer = same_user(sock, self.address)
        except (OSError, ProtocolError) as error:
            sock.close()
            self._failed(error)
            return
        self._trial = UnixLine(
            sock,
            self.address,
            peer,
            self._hello,
            self._handler,
            self,
            self._options,
            speaks_first=True,
        )

    def _failed(self, error: Exception) -> None:
        self._error = error
        if self._closed:
            return
        if isinstance(error, ProtocolError):
            delay = _REFUSED_DELAY
            self._refusals = self._refusals + 1 if isinstance(error, Disagreement) else 0
            if self._refusals > 1 and self.on_refused is not None:
                self.on_refused(error)
        else:
            self._refusals = 0
            delay = self._delay
            self._delay = min(2 * delay, _LONGEST_DELAY)
        self._timer = self._loop.call_later(delay, self._connect)

    def settled(self, line: UnixLine, error: Exception | None) -> None:
        self._trial = None
        if error is None:
            self.channel = line
            self._error = None
            self._refusals = 0
            self._since = self._loop.time()
        else:
            self._failed(error)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def gone(self, line: UnixLine, error: Exception | None) -> None:
        self.channel = None
        if self._loop.time() - self._since >= _STEADY:
            self._delay = _FIRST_DELAY
        self._failed(error or ConnectionResetError(f"{line.name} has ended"))

    def close(self) -> None:
        """Stop dialling and close the channel. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for line in (self._trial, self.channel):
            if line is not None:
                line.close()
