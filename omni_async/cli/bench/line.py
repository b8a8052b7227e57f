"""A control line between the benchmark and one of its workers.

In: JSON-able values. Out: the other end's values, one per line of text.
Never: unpickles, carries what is being measured.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any


class LineClosed(ConnectionError):
    """The other end is gone."""


class Line:
    """JSON values over a stream socket; blocking calls and ``..._async`` ones share one buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unread = bytearray()

    def send(self, value: Any) -> None:
        self.sock.sendall(json.dumps(value).encode() + b"\n")

    def receive(self, timeout: float | None = None) -> Any:
        """The next value.

        Raises:
            TimeoutError: nothing came within ``timeout`` seconds.
            LineClosed: the other end is gone.
        """
        self.sock.settimeout(timeout)
        while (value := self._take()) is None:
            self._add(self.sock.recv(1 << 16))
        return value[0]

    async def send_async(self, value: Any) -> None:
        """Cancellation: ends the line, part of a value may have gone out."""
        loop = asyncio.get_running_loop()
        self.sock.setblocking(False)
        await loop.sock_sendall(self.sock, json.dumps(value).encode() + b"\n")

    async def receive_async(self) -> Any:
        """Cancellation: safe."""
        loop = asyncio.get_running_loop()
        self.sock.setblocking(False)
        while (value := self._take()) is None:
            self._add(await loop.sock_recv(self.sock, 1 << 16))
        return value[0]

    def close(self) -> None:
        self.sock.close()

    def _add(self, data: bytes) -> None:
        if not data:
            raise LineClosed("the other end closed the control line")
        self._unread += data

    def _take(self) -> tuple[Any] | None:  # a tuple, since a value may be None
        end = self._unread.find(b"\n")
        if end < 0:
            return None
        text = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return (json.loads(text),)
