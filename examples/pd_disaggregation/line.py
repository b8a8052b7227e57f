"""The lines between the ranks of one instance, over a pair of sockets from the first rank to each other one.

In: calls of the first rank, in the order in which all ranks carry them out. Out: what each has answered.
Never: outlives either end; crosses a host, so nobody is asked who he is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

Work = Callable[..., Coroutine[Any, Any, Any]]


class RankFailed(Exception):
    """Another rank could not do what it was asked, in its words; or it has gone."""


class _Call(msgspec.Struct, array_like=True):
    number: int
    name: str
    arguments: list[Any]


class _Answer(msgspec.Struct, array_like=True):
    number: int
    result: Any = None
    error: str | None = None


class Calls:
    """(first rank) What another rank is told to do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self.ended: asyncio.Task[None] = asyncio.create_task(self._listen())
        """Done when the other rank has gone."""

    def call(self, name: str, arguments: Sequence[Any]) -> asyncio.Future[Any]:
        """Tell it now, in turn; its answer later. The future raises :class:`RankFailed`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.ended.done():
            answer.set_exception(RankFailed("a rank of this instance has gone"))
            return answer
        self._count += 1
        self._waiting[self._count] = answer
        _write(self._writer, _Call(self._count, name, list(arguments)))
        return answer

    async def _listen(self) -> None:
        while (answer := await _read(self._reader, _Answer)) is not None:
            waiting = self._waiting.pop(answer.number)
            if waiting.done():  # nobody waits for it any more
                continue
            if answer.error is None:
                waiting.set_result(answer.result)
            else:
                waiting.set_exception(RankFailed(answer.error))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RankFailed("a rank of this instance has gone"))

    async def close(self) -> None:
        """Let the other rank end. Idempotent."""
        self._writer.close()
        await self.ended


async def obey(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, works: Mapping[str, Work]
) -> None:
    """(other ranks) Do what one is told until the first rank has gone. Works begin in the order of the calls."""
    under_way: set[asyncio.Task[None]] = set()

    async def do(call: _Call) -> None:
        answer = _Answer(call.number)
        try:
            answer.result = await works[call.name](*call.arguments)
        except Exception as error:  # noqa: BLE001 - the first rank raises it
            answer.error = f"{type(error).__name__}: {error}"
        _write(writer, answer)

    while (call := await _read(reader, _Call)) is not None:
        task = asyncio.create_task(do(call))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    for task in under_way:
        task.cancel()
    writer.close()


async def over(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams over one end of a pair."""
    return await asyncio.open_unix_connection(sock=sock)


def _write(writer: asyncio.StreamWriter, word: _Call | _Answer) -> None:
    raw = msgspec.msgpack.encode(word)
    writer.write(len(raw).to_bytes(4, "little") + raw)


async def _read(reader: asyncio.StreamReader, kind: type[Any]) -> Any:
    """``None`` when the other end has gone."""
    try:
        head = await reader.readexactly(4)
        raw = await reader.readexactly(int.from_bytes(head, "little"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return msgspec.msgpack.decode(raw, type=kind)


class Gather:
    """What the heads of all ranks have found, at each of them. Blocks; for the threads in which models compute.

    Args:
        others: (first rank) a socket to each other rank, in their order; (another rank) the one to the first.
    """

    def __init__(self, others: Sequence[socket.socket], tp_rank: int, tp_size: int) -> None:
        self._others = others
        self._first = tp_rank == 0
        self._tp_size = tp_size

    def __call__(self, found: Tensor) -> Tensor:
        """``[token, own head, element]`` → ``[token, head, element]``."""
        if self._tp_size == 1:
            return found
        own = found.contiguous()
        if self._first:
            parts = [own, *(_received(other, torch.empty_like(own)) for other in self._others)]
            whole = torch.cat(parts, 1)
            for other in self._others:
                other.sendall(_raw(whole))
            return whole
        count, heads, size = own.shape
        [first] = self._others
        first.sendall(_raw(own))
        return _received(first, torch.empty((count, heads * self._tp_size, size), dtype=own.dtype))

    def close(self) -> None:
        """End it: who waits for another rank fails."""
        for other in self._others:
            with contextlib.suppress(OSError):  # the other end has gone
                other.shutdown(socket.SHUT_RDWR)
            other.close()


def _raw(tensor: Tensor) -> memoryview:
    return tensor.numpy().data.cast("B")


def _received(sock: socket.socket, into: Tensor) -> Tensor:
    rest = _raw(into)
    while rest:
        count = sock.recv_into(rest)
        if not count:
            raise RankFailed("a rank of this instance has gone")
        rest = rest[count:]
    return into
