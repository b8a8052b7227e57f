"""The card of the double: what serves a receiver's memory to peers, and a sender's connection to one.

In: requests of other processes, for regions by their number. Out: bytes moved by the kernel between the two processes.
Never: touches a byte outside a region that is registered at that moment.

The receiver's side moves the bytes, with its table of regions locked: so a region that was unregistered takes none,
as with a real card. Unlike one, it needs a process that runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

from .. import carrier
from ..carrier import Piece

_REQUEST = struct.Struct("!BIQQIQ")
"""What is wanted, region, offset, length, process and address of the other end."""
_REPLY = struct.Struct("!BQ")

ASK, PUT, GET = 1, 2, 3
DONE, NOT_THERE, UNREACHABLE = 1, 2, 3


class RemoteAccess(Exception):
    """The range is not registered at the peer."""


class Card:
    """One end's memory, served at a port.

    Args:
        host: where to listen.
    """

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._regions: dict[int, tuple[int, int]] = {}
        self._lines: set[socket.socket] = set()
        self._over = False
        threading.Thread(target=self._accept, name="mori-control", daemon=True).start()

    def register(self, number: int, address: int, nbytes: int) -> None:
        with self._lock:
            self._regions[number] = address, nbytes

    def deregister(self, number: int) -> None:
        with self._lock:
            self._regions.pop(number, None)

    def close(self) -> None:
        with self._lock:
            self._over = True
            self._regions.clear()
            lines = list(self._lines)
        for one in (self._listener, *lines):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._over:
                    line.close()
                    return
                self._lines.add(line)
            threading.Thread(
                target=self._serve, args=(line,), name="mori-serving", daemon=True
            ).start()

    def _serve(self, line: socket.socket) -> None:
        try:
            while True:
                request = _received(line, _REQUEST.size)
                line.sendall(_REPLY.pack(*self._answer(*_REQUEST.unpack(request))))
        except OSError:
            return
        finally:
            with self._lock:
                self._lines.discard(line)
            line.close()

    def _answer(
        self, want: int, number: int, offset: int, nbytes: int, pid: int, there: int
    ) -> tuple[int, int]:
        with self._lock:
            address, size = self._regions.get(number, (0, 0))
            if want == ASK:
                return DONE, size
            if offset + nbytes > size:
                return NOT_THERE, 0
            piece = Piece(pid, address + offset, there, nbytes)
            try:
                (carrier.get if want == PUT else carrier.put)(piece)
            except OSError:
                return UNREACHABLE, 0
            return DONE, 0


class Connection:
    """From one engine to one peer's card; once it has failed it stays dead.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._line = socket.create_connection((host, port))
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()
        self.dead = False

    def size_of(self, number: int) -> int:
        """Bytes of a region; 0 where there is none."""
        return self._asked(ASK, number, 0, 0, 0)

    def move(self, want: int, number: int, offset: int, piece: Piece) -> None:
        """Move one piece.

        Raises:
            RemoteAccess: it is not registered there.
            OSError: the peer does not answer.
        """
        self._asked(want, number, offset, piece.nbytes, piece.near)

    def close(self) -> None:
        self.dead = True
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._line.close()

    def _asked(self, want: int, number: int, offset: int, nbytes: int, near: int) -> int:
        request = _REQUEST.pack(want, number, offset, nbytes, os.getpid(), near)
        with self._lock:
            self._line.sendall(request)
            status, value = _REPLY.unpack(_received(self._line, _REPLY.size))
        if status == NOT_THERE:
            raise RemoteAccess
        if status == UNREACHABLE:
            raise OSError("the peer cannot reach this process")
        return int(value)


def _received(line: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        more = line.recv(nbytes - len(data))
        if not more:
            raise ConnectionResetError("the line has ended")
        data += more
    return data
