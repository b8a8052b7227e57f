"""The handshake port: who a rank is, told to whoever asks; and asking.

In: what a rank says of itself; an address. Out: answers.
Never: ends by what it hears, waits for ever.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ..._aio.deadline import seconds
from ...errors import TransferTimeout
from ...observe.log import get_logger
from ...rendezvous.zmq_address import HostPort
from ...rendezvous.zmq_bind import Wanted
from ...rendezvous.zmq_open_port import OpenPort, Said
from ...rendezvous.zmq_request import ask_once
from .metadata import QUESTION, AgentMetadata, Layers, packed_answer, parse_answer

ANSWER_LIMIT = 16 << 20
"""Bytes of one message of an answer: descriptors of some thousand layers."""
_QUESTION_LIMIT = 64 << 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

_log = get_logger("omni_async.kv")


class HandshakePort:
    """Answers until closed. Use :func:`open_handshake_port`."""

    def __init__(self, metadata: AgentMetadata, layers: Layers) -> None:
        self.answered = 0
        self.dropped = 0
        """Messages that ask nothing that is known here."""
        self._answer = packed_answer(metadata, layers)
        self._port = OpenPort(self._heard, _QUESTION_LIMIT)

    @property
    def where(self) -> HostPort:
        return self._port.where

    @property
    def unanswered(self) -> int:
        """Answers for who had gone, or took no more."""
        return self._port.unanswered

    def tell(self, metadata: AgentMetadata, layers: Layers) -> None:
        """Answer this from now on."""
        self._answer = packed_answer(metadata, layers)

    def _heard(self, said: Said) -> None:
        if said.frames != [QUESTION]:
            self.dropped += 1
            if self.dropped == 1:
                first = said.frames[0][:40] if said.frames else b""
                _log.warning(
                    "message refused at the handshake port", parts=len(said.frames), begins=first
                )
            return
        for body in self._answer:
            if not said.answer((b"", body)):
                return
        self.answered += 1

    async def open(self, host: str, port: int) -> None:
        await self._port.open(host, port, Wanted("the handshake", "host_ip", "handshake_port"))

    def close(self) -> None:
        """Answer nobody any more. Idempotent."""
        self._port.close()


async def open_handshake_port(
    host: str, port: int, metadata: AgentMetadata, layers: Layers | None = None
) -> HandshakePort:
    """Listen at a rank's handshake port.

    Args:
        host: an address of this machine, a name of one, or ``auto``.
        port: the rank's own: see :func:`~.ports.port_of`.

    Raises:
        UsageError: somebody listens there already; names the process.
        ConfigError: the host is no address of this machine.

    Cancellation: safe; nothing is bound.
    """
    opened = HandshakePort(metadata, layers or {})
    await opened.open(host, port)
    return opened


class Answer(NamedTuple):
    """Who a rank is."""

    metadata: AgentMetadata
    layers: Layers


async def ask_handshake(host: str, port: int, *, timeout: float | None = 10.0) -> Answer:
    """Ask a rank who it is; until it is there, again and again.

    Raises:
        TransferTimeout: there was no answer in time; ``phase`` is ``handshake``.
        ProtocolError: it answers with something else.

    Cancellation: safe.
    """
    where = HostPort(host, port)
    limit = seconds(timeout)
    loop = asyncio.get_running_loop()
    until = None if limit is None else loop.time() + limit
    pause, last = _FIRST_PAUSE, ""
    while True:
        left = None if until is None else until - loop.time()
        try:
            asking = ask_once(where, (QUESTION,), 2, limit=ANSWER_LIMIT)
            bodies = await asyncio.wait_for(asking, left)
            return Answer(*parse_answer(bodies, str(where)))
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise _late(where, limit, str(error) or last) from None
        except OSError as error:
            last = str(error)
        if until is not None and loop.time() + pause >= until:
            raise _late(where, limit, last)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _late(where: HostPort, limit: float | None, last: str) -> TransferTimeout:
    detail = f": {last}" if last else ""
    return TransferTimeout(
        f"{where} did not answer the handshake within {limit} s{detail}",
        phase="handshake",
        timeout=limit,
        peer=str(where),
    )
