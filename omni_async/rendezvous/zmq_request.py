"""ZMQ requests: questions to somebody who speaks another wire, each with one answer.

In: an address, questions. Out: answers, or why there is none.
Never: uses a socket again whose answer has not come, connects one twice, asks a name service on the
event loop.

As seen from there each socket is a REQ: a question, then its answer. Nothing on such a wire says which
question an answer belongs to, so a socket whose question was given up is closed with it, and a late answer
finds nobody.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack

import zmq

from .._aio.executor import OwnedExecutor
from ..errors import ClosedError, ConfigError
from .zmq_address import HostPort, is_numeric, parsed
from .zmq_context import close_socket, new_socket
from .zmq_hosts import Place, numeric_places, places
from .zmq_monitor import BROKEN, DISCONNECTED, RETRIED, Monitor
from .zmq_sockets import Frames, ReadySocket

ANSWER_LIMIT = 64 << 10
"""Bytes of an answer."""
CONNECT_SECONDS = 5.0
NAMES_LAST = 1.0
"""Seconds for which an answer of the name service is believed."""
_NEVER = 24 * 3600 * 1000
"""Milliseconds until libzmq would connect again."""


class ZmqRequests:
    """Asks one address.

    Args:
        address: ``tcp://host:port``.
        sockets: questions that may be under way at a time; the rest stand in line.

    Raises:
        UsageError: it is no address of a sender.
    """

    def __init__(self, address: str, sockets: int) -> None:
        self._where = parsed(address)
        self.address = str(self._where)
        self._turns = asyncio.Semaphore(sockets)
        self._names = _Names(self._where)
        self._idle: list[_Asker] = []
        self._busy: set[_Asker] = set()
        self._closed = False

    async def ask(self, body: bytes, asked: Callable[[], None] | None = None) -> bytes:
        """The answer to a question.

        Args:
            asked: called when it has its turn: from then on it may be heard.

        Raises:
            ConnectionRefusedError: nobody is there; it was not heard.
            OSError: the connection has ended without an answer; it may have been heard.
            ClosedError: these requests are closed.

        Cancellation: safe; whoever was asked may answer to nobody.
        """
        async with self._turns:
            asker = await self._asker()
            self._busy.add(asker)
            if asked is not None:
                asked()
            try:
                answer = await asker.ask(body)
            except BaseException as error:
                asker.close()
                if isinstance(error, OSError):
                    self._names.turn()
                raise
            finally:
                self._busy.discard(asker)
            self._idle.append(asker)
            return answer

    async def _asker(self) -> _Asker:
        while self._idle:
            asker = self._idle.pop()
            if asker.sound:
                return asker
            asker.close()
        place = await self._names.place()
        if self._closed:
            raise ClosedError(f"requests to {self.address} are closed")
        return _Asker(place)

    def close(self) -> None:
        """End all questions. Idempotent."""
        self._closed = True
        self._names.close()
        for asker in self._idle:
            asker.close()
        self._idle.clear()
        for asker in self._busy:
            asker.fail(ClosedError(f"requests to {self.address} are closed"))


class _Names:
    """What a host stands for."""

    def __init__(self, where: HostPort) -> None:
        self._where = where
        self._places: list[Place] = []
        self._until = 0.0
        self._executor: OwnedExecutor | None = None
        self._closed = False

    async def place(self) -> Place:
        """Where to connect to next.

        Raises:
            OSError: the name is not known.
        """
        if is_numeric(self._where.host):
            self._places = self._places or numeric_places(self._where)
        elif not self._places or asyncio.get_running_loop().time() > self._until:
            await self._look_up()
        return self._places[0]

    async def _look_up(self) -> None:
        if self._executor is None:
            self._executor = OwnedExecutor("omni-async-names", 1)
        if self._closed:
            self._executor.close()
        try:
            self._places = await places(*self._where, self._executor)
        except ConfigError as error:
            raise OSError(str(error)) from None
        self._until = asyncio.get_running_loop().time() + NAMES_LAST

    def turn(self) -> None:
        """The last one did not do: try another of those that the name stands for."""
        if self._places:
            self._places.append(self._places.pop(0))

    def close(self) -> None:
        self._closed = True
        if self._executor is not None:
            self._executor.close()


class _Asker:
    """One socket, one connection.

    Raises:
        OSError: no more sockets are to be had.
    """

    def __init__(self, place: Place) -> None:
        self._name = str(place.where)
        self._answer: asyncio.Future[bytes] | None = None
        self._cut = False
        self._detail: Exception | None = None
        self.sound = True
        """Another question may be asked."""
        with ExitStack() as undo:
            try:
                dealer = new_socket(zmq.DEALER)
                undo.callback(close_socket, dealer)
                dealer.set(zmq.RECONNECT_IVL, _NEVER)
                dealer.set(zmq.CONNECT_TIMEOUT, int(CONNECT_SECONDS * 1000))
                dealer.set(zmq.HANDSHAKE_IVL, int(CONNECT_SECONDS * 1000))
                dealer.set(zmq.MAXMSGSIZE, ANSWER_LIMIT)
                dealer.set(zmq.IPV6, int(place.family == socket.AF_INET6))
                self._monitor = Monitor(dealer, self._happened, place.where.port)
                undo.callback(self._monitor.close)
                self._ready = ReadySocket(dealer, self._heard, self._dry)
                undo.callback(self._ready.close)
                dealer.connect(self._name)
            except zmq.ZMQError as error:
                raise OSError(error.errno, str(error)) from None
            undo.pop_all()

    async def ask(self, body: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._ready.send((b"", body))
            return await self._answer
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from None
        finally:
            self._answer = None

    def _heard(self, frames: Frames) -> None:
        answer = self._answer
        if answer is None or answer.done():
            self.sound = False  # nobody has asked
        elif len(frames) != 2 or len(frames[0]):
            self.fail(ConnectionError(f"{self._name} answered in {len(frames)} parts"))
        else:
            answer.set_result(frames[1].bytes)

    def _happened(self, event: int, value: int) -> None:
        if event == RETRIED and not self._cut:
            error = ConnectionRefusedError(f"nobody can be reached at {self._name}")
            self.fail(self._detail or error)
        elif event == BROKEN:
            self._detail = ConnectionError(f"{self._name} does not speak ZeroMQ ({value:#x})")
        elif event == DISCONNECTED:
            self._cut = True
            self.sound = False
            self._ready.look_soon()  # the answer may still lie in the socket

    def _dry(self) -> None:
        if self._cut:
            error = ConnectionResetError(f"the connection to {self._name} ended without an answer")
            self.fail(self._detail or error)

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        self.sound = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def close(self) -> None:
        """Idempotent."""
        self.sound = False
        self._monitor.close()
        self._ready.close()
