"""Redialer: what every dialer of a real connection does between two lines.

In: outcomes of attempts. Out: the next attempt, in time; word of refusals.
Never: gives up before it is closed, wakes more often than twenty times a second while nobody is there.
"""

from __future__ import annotations

import abc
import asyncio

from ..abc import Channel, Dialer
from ..errors import ProtocolError
from .handshake import Disagreement

_FIRST_DELAY = 0.001
_LONGEST_DELAY = 0.05
_REFUSED_DELAY = 0.5
"""After a broken handshake: the same peer is not likely to agree in a millisecond."""
_STEADY = 1.0
"""Seconds a line must have stood for the back-off to begin anew."""


class Redialer(Dialer):
    """Connects, and connects again after the line has ended, until closed.

    A subclass has :meth:`_connect`, which begins an attempt, and :attr:`_trying`; of each attempt's
    end it tells by :meth:`_failed` or :meth:`_stands`, then by :meth:`_attempted`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel: Channel | None = None
        self._loop = asyncio.get_running_loop()
        self._delay = _FIRST_DELAY
        self._since = 0.0
        self._refusals = 0
        """Disagreements one after another."""
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False

    @abc.abstractmethod
    def _connect(self) -> None:
        """Begin an attempt; it may have ended when this returns."""

    @property
    @abc.abstractmethod
    def _trying(self) -> bool:
        """Whether an attempt is under way."""

    def refused(self) -> Exception | None:
        """What the last attempt ran into: ``OSError`` for nobody there, else ``ProtocolError``."""
        return self._error

    async def attempt(self) -> Channel | None:
        """Try once, now, unless there is a channel; ``None`` when nobody is there.

        Cancellation: safe.
        """
        if self.channel is not None or self._closed:
            return self.channel
        if not self._trying:
            if self._timer is not None:
                self._timer.cancel()
            self._due()
        if self._trying:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self.channel

    def _due(self) -> None:
        self._timer = None
        self._connect()

    def _failed(self, error: Exception) -> None:
        """An attempt has failed, or the line has ended: there will be another attempt."""
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
        self._timer = self._loop.call_later(delay, self._due)

    def _stands(self, channel: Channel) -> None:
        """An attempt has led to a line."""
        self.channel = channel
        self._error = None
        self._refusals = 0
        self._since = self._loop.time()

    def _attempted(self) -> None:
        """Wake who waits for the attempt that has just ended."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _fallen(self, channel: Channel, error: Exception | None) -> None:
        """The line is over, whoever ended it."""
        self.channel = None
        if self._loop.time() - self._since >= _STEADY:
            self._delay = _FIRST_DELAY
        self._failed(error or ConnectionResetError(f"{channel.name} has ended"))

    def _stop(self) -> bool:
        """Begin no attempt any more; ``False`` when that was said before."""
        if self._closed:
            return False
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        return True
