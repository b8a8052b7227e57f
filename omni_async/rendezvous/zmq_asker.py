"""Asker: one socket with one connection, on which one question at a time is asked.

In: a place, the frames of a question. Out: its answers, or why there are none.
Never: connects twice, believes an answer that nobody asked for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack

import zmq

from .zmq_context import close_socket, new_socket
from .zmq_hosts import Place
from .zmq_monitor import BROKEN, DISCONNECTED, RETRIED, Monitor
from .zmq_sockets import Frames, ReadySocket

ANSWER_LIMIT = 64 << 10
"""Bytes of an answer."""
CONNECT_SECONDS = 5.0
_NEVER = 24 * 3600 * 1000
"""Milliseconds until libzmq would connect again."""


class Asker:
    """One socket, one connection. An answer is a message with an empty frame in front.

    Args:
        limit: bytes of an answer.

    Raises:
        OSError: no more sockets are to be had.
    """

    def __init__(self, place: Place, limit: int = ANSWER_LIMIT) -> None:
        self._name = str(place.where)
        self._answer: asyncio.Future[list[bytes]] | None = None
        self._come: list[bytes] = []
        self._wanted = 0
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
                dealer.set(zmq.MAXMSGSIZE, limit)
                dealer.set(zmq.IPV6, int(place.family == socket.AF_INET6))
                self._monitor = Monitor(dealer, self._happened, place.where.port)
                undo.callback(self._monitor.close)
                self._ready = ReadySocket(dealer, self._heard, self._dry)
                undo.callback(self._ready.close)
                dealer.connect(self._name)
            except zmq.ZMQError as error:
                raise OSError(error.errno, str(error)) from None
            undo.pop_all()

    async def ask(self, question: Sequence[bytes], answers: int = 1) -> list[bytes]:
        """The answers to a question.

        Args:
            question: its frames.
            answers: how many messages answer it.

        Raises:
            ConnectionRefusedError: nobody is there; it was not heard.
            OSError: the connection has ended without an answer; it may have been heard.

        Cancellation: safe; close it then, for an answer may still come.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._come, self._wanted = [], answers
        try:
            self._ready.send(question)
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
            self._come.append(frames[1].bytes)
            if len(self._come) == self._wanted:
                answer.set_result(self._come)

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
