"""Unix listener: accepts lines at one address.

In: connections. Out: lines whose peer is this user's and has said a ``Hello`` that fits.
Never: is disturbed by who connects and says nothing, nonsense, or leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

from .._aio.fork import close_in_child
from ..abc import ChannelHandler, Listener
from ..errors import ProtocolError
from ..observe.log import get_logger
from .messages import Hello
from .turned_line import LineOptions
from .unix_address import is_path, path_of
from .unix_line import UnixLine
from .unix_peer import same_user

_log = get_logger("omni_async.rendezvous")

_ACCEPTS_PER_TURN = 64
_PAUSE = 0.1
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class UnixListener(Listener):
    """Accepts until closed; lines that stand outlive it."""

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        hello: Hello,
        handler: ChannelHandler,
        options: LineOptions,
    ) -> None:
        self.address = address
        self.dropped = 0
        """Connections that never became a channel."""
        self.last_drop: Exception | None = None
        self._sock = sock
        self._hello = hello
        self._handler = handler
        self._options = options
        self._pending: set[UnixLine] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._file = _identity(path_of(address)) if is_path(address) else None
        self._loop = asyncio.get_running_loop()
        close_in_child(sock)
        self._loop.add_reader(sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _peer = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._hold_on(error)
                    return
                continue  # that one has left again
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        try:
            peer = same_user(sock, self.address)
        except ProtocolError as error:
            sock.close()
            self._drop(error)
            return
        self._pending.add(
            UnixLine(
                sock,
                self.address,
                peer,
                self._hello,
                self._handler,
                self,
                self._options,
                speaks_first=False,
            )
        )

    def _hold_on(self, error: OSError) -> None:
        """No descriptor is left: who waits to be accepted goes on waiting, without a busy loop."""
        _log.warning("cannot accept for now", address=self.address, reason=str(error))
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def settled(self, line: UnixLine, error: Exception | None) -> None:
        self._pending.discard(line)
        if error is not None:
            self._drop(error)

    def gone(self, line: UnixLine, error: Exception | None) -> None:
        """Nothing to do: the peer dials again."""

    def _drop(self, error: Exception) -> None:
        self.dropped += 1
        if isinstance(error, ProtocolError) and str(error) != str(self.last_drop):
            _log.warning("connection refused", reason=str(error))
        self.last_drop = error

    def close(self) -> None:
        """Stop accepting, remove the socket's file; lines that stand stay. Idempotent."""
        if self._sock.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock.fileno())
        if self._file is not None:
            # Before the socket is closed: while it listens nobody reclaims the name.
            path = path_of(self.address)
            if _identity(path) == self._file:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        self._sock.close()
        for line in list(self._pending):
            line.close()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
