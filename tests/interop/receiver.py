"""A receiver as vLLM-Omni's is, as far as its wire goes: a REQ socket, an engine, registered memory.

In: keys. Out: what the sender answers, and the bytes that its engine wrote.
Never: has more manners than a real one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from omni_async.model import Verb
from omni_async.pool.memory import AnonymousMemory

from .double import SessionEngine

SIZE = 64 << 20


class Receiver:
    """One of theirs."""

    def __init__(self, port: int) -> None:
        self._context = zmq.asyncio.Context()
        self._port = port
        self.engine = SessionEngine(Verb.WRITE)
        self._block = AnonymousMemory().allocate(SIZE)
        self.engine.register(self._block.address, SIZE)
        self.memory = np.frombuffer(self._block.view(), np.uint8)
        self._sockets: list[Any] = []
        self._socket = self.socket()

    def socket(self) -> Any:
        socket = self._context.socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{self._port}")
        self._sockets.append(socket)
        return socket

    async def ask(self, body: bytes, socket: Any = None) -> bytes:
        socket = socket or self._socket
        await socket.send(body)
        answer: bytes = await socket.recv()
        return answer

    async def query(self, key: str, socket: Any = None) -> dict[str, Any] | None:
        answer = await self.ask(b"query_info" + msgspec.msgpack.encode({"request_id": key}), socket)
        if answer == b"info_not_found":
            return None
        found: dict[str, Any] = msgspec.msgpack.decode(answer)
        return found

    def pull_word(self, key: str, nbytes: int, at: int = 0, **parts: Any) -> bytes:
        host, _, port = self.engine.session.rpartition(":")
        word = {
            "remote_hostname": host,
            "remote_port": int(port),
            "request_id": key,
            "dst_addrs": [self._block.address + at],
            "lengths": [nbytes],
        }
        return msgspec.msgpack.encode({**word, **parts})

    async def pull(
        self, key: str, nbytes: int, at: int = 0, socket: Any = None, **parts: Any
    ) -> bytes:
        return await self.ask(self.pull_word(key, nbytes, at, **parts), socket)

    def landed(self, nbytes: int, at: int = 0) -> bytes:
        return self.memory[at : at + nbytes].tobytes()

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()
        self.engine.close()


@contextlib.contextmanager
def receiver(port: int) -> Iterator[Receiver]:
    made = Receiver(port)
    try:
        yield made
    finally:
        made.close()
