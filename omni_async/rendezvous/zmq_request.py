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
from collections.abc import Callable, Sequence

from .._aio.executor import OwnedExecutor
from ..errors import ClosedError, ConfigError
from .zmq_address import HostPort, is_numeric, parsed
from .zmq_asker import Asker
from .zmq_hosts import Place, numeric_places, places

NAMES_LAST = 1.0
"""Seconds for which an answer of the name service is believed."""


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
        self._idle: list[Asker] = []
        self._busy: set[Asker] = set()
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
                [answer] = await asker.ask((b"", body))
            except BaseException as error:
                asker.close()
                if isinstance(error, OSError):
                    self._names.turn()
                raise
            finally:
                self._busy.discard(asker)
            self._idle.append(asker)
            return answer

    async def _asker(self) -> Asker:
        while self._idle:
            asker = self._idle.pop()
            if asker.sound:
                return asker
            asker.close()
        place = await self._names.place()
        if self._closed:
            raise ClosedError(f"requests to {self.address} are closed")
        return Asker(place)

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


async def ask_once(
    where: HostPort, question: Sequence[bytes], answers: int = 1, *, limit: int
) -> list[bytes]:
    """One question on a connection of its own.

    Args:
        question: its frames.
        answers: how many messages answer it.
        limit: bytes of an answer.

    Raises:
        ConnectionRefusedError: nobody is there; it was not heard.
        OSError: the host's name is not known, or the connection has ended without an answer.

    Cancellation: safe; whoever was asked may answer to nobody.
    """
    names = _Names(where)
    try:
        asker = Asker(await names.place(), limit)
    finally:
        names.close()
    try:
        return await asker.ask(question, answers)
    finally:
        asker.close()
