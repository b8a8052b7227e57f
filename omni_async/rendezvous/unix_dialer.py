"""Unix dialer: keeps one line to one address.

In: an address. Out: a line whenever somebody of this user listens there and agrees.
Never: gives up before it is closed, wakes more often than twenty times a second while nobody is there.
"""

from __future__ import annotations

import socket

from ..abc import ChannelHandler
from ..errors import ProtocolError
from .messages import Hello
from .redialer import Redialer
from .turned_line import LineOptions
from .unix_address import socket_name
from .unix_line import UnixLine
from .unix_peer import same_user


class UnixDialer(Redialer):
    """Connects, and connects again after the line has ended, until closed."""

    def __init__(
        self, address: str, hello: Hello, handler: ChannelHandler, options: LineOptions
    ) -> None:
        super().__init__(address)
        self._name = socket_name(address)
        self._hello = hello
        self._handler = handler
        self._options = options
        self._trial: UnixLine | None = None
        self._connect()

    @property
    def _trying(self) -> bool:
        return self._trial is not None

    def _connect(self) -> None:
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

    def settled(self, line: UnixLine, error: Exception | None) -> None:
        self._trial = None
        if error is None:
            self._stands(line)
        else:
            self._failed(error)
        self._attempted()

    def gone(self, line: UnixLine, error: Exception | None) -> None:
        self._fallen(line, error)

    def close(self) -> None:
        """Stop dialling and close the channel. Idempotent."""
        if self._stop():
            for line in (self._trial, self.channel):
                if line is not None:
                    line.close()
