"""ZMQ dialer: keeps one line to one address.

In: an address. Out: a line whenever somebody listens there and agrees.
Never: asks a name service on the event loop, or more often than once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from .._aio.executor import OwnedExecutor
from ..abc import ChannelHandler
from ..errors import ConfigError
from .messages import Hello
from .redialer import Redialer
from .turned_line import LineOptions
from .zmq_address import HostPort, is_numeric
from .zmq_dealing import ZmqDealing
from .zmq_hosts import Place, numeric_places, places
from .zmq_line import ZmqLine

_NAMES_LAST = 1.0
"""Seconds for which an answer of the name service is believed: a restarted pod has another address."""


class ZmqDialer(Redialer):
    """Connects, and connects again after the line has ended, until closed."""

    def __init__(
        self,
        where: HostPort,
        hello: Hello,
        handler: ChannelHandler,
        options: LineOptions,
        prepare: Callable[[zmq.Socket[bytes]], None],
    ) -> None:
        super().__init__(str(where))
        self._where = where
        self._hello = hello
        self._handler = handler
        self._options = options
        self._prepare = prepare
        self._dealing: ZmqDealing | None = None
        self._executor: OwnedExecutor | None = None
        self._looking_up: asyncio.Future[list[Place]] | None = None
        self._places: list[Place] = []
        self._unknown: OSError | None = None
        self._looked_up = 0.0
        if is_numeric(where.host):
            self._places = numeric_places(where)
        self._connect()

    @property
    def _trying(self) -> bool:
        return self._dealing is not None or self._looking_up is not None

    def _connect(self) -> None:
        if is_numeric(self._where.host):
            self._deal()
        elif self._looked_up and self._loop.time() - self._looked_up < _NAMES_LAST:
            self._use_names()
        else:
            if self._executor is None:
                self._executor = OwnedExecutor("omni-async-names", 1)
            self._looking_up = asyncio.ensure_future(places(*self._where, self._executor))
            self._looking_up.add_done_callback(self._named)

    def _named(self, answer: asyncio.Future[list[Place]]) -> None:
        self._looking_up = None
        if answer.cancelled() or self._closed:
            return
        self._looked_up = self._loop.time()
        error = answer.exception()
        self._unknown = None
        if error is None:
            self._places = answer.result()
        elif isinstance(error, ConfigError):
            self._unknown = OSError(str(error))
        else:
            raise error
        self._use_names()
        if not self._trying:
            self._attempted()

    def _use_names(self) -> None:
        if self._unknown is not None:
            self._failed(self._unknown)
        else:
            self._deal()

    def _deal(self) -> None:
        try:
            self._dealing = ZmqDealing(
                self._places[0], self._hello, self._handler, self, self._options, self._prepare
            )
        except OSError as error:  # no descriptor is left
            self._failed(error)

    def settled(self, dealing: ZmqDealing, outcome: ZmqLine | Exception) -> None:
        self._dealing = None
        if isinstance(outcome, Exception):
            self._places.append(self._places.pop(0))  # a name may stand for several places
            self._failed(outcome)
        else:
            self._stands(outcome)
        self._attempted()

    def gone(self, line: ZmqLine, error: Exception | None) -> None:
        self._fallen(line, error)

    def close(self) -> None:
        """Stop dialling and close the channel. Idempotent."""
        if not self._stop():
            return
        if self._looking_up is not None:
            self._looking_up.cancel()
            self._looking_up = None
        if self._executor is not None:
            self._executor.close()
        if self._dealing is not None:
            self._dealing.close()
            self._dealing = None
        if self.channel is not None:
            self.channel.close()
        self._attempted()
