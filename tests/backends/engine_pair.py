"""Two ends of one kind of engine, in one process or in two.

In: engines, or the module of an agent. Out: writes from the one's memory into the other's.
Never: knows whose engines they are.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Generic, TypeVar

from omni_async.abc import Engine, RemoteRegion
from omni_async.model import Move
from omni_async.pool.memory import AnonymousMemory, MappedBlock
from tests.cases.processes import Process, Processes

MIB = 1 << 20
SIZE = 64 * MIB
"""Bytes of each end's memory, within one process."""

BAD_MOVES = (
    ((0, 0, SIZE + 1), "out of bounds"),
    ((0, SIZE - 9, 10), "out of bounds"),
    ((0, -1, 10), "out of bounds"),
    ((0, 1 << 63, 10), "out of bounds"),
    ((0, 0, -1), "out of bounds"),
    ((-1, 0, 10), "not registered"),
    ((SIZE - 9, 0, 10), "not registered"),
    ((1 << 40, 0, 10), "not registered"),
)
"""From, to (offsets) and length of what no engine's vendor may see, and the status of the refusal."""
BAD_REGIONS = ((0, 10), (-5, 10), (4096, 0), (4096, -1), ((1 << 64) - 9, 10))
"""Address and length of what no peer can have."""


E = TypeVar("E", bound=Engine)


class Both(Generic[E]):
    """A sender's engine and a receiver's in this process, with memory."""

    def __init__(self, sender: E, receiver: E, *, refuses: bool = True) -> None:
        self.sender, self.receiver = sender, receiver
        self.source: MappedBlock = AnonymousMemory().allocate(SIZE)
        self.target: MappedBlock = AnonymousMemory(refuses=refuses).allocate(SIZE)
        self.here = sender.register(self.source.address, SIZE)
        self.there = receiver.register(self.target.address, SIZE)
        sender.meet("r", receiver.describe())
        region = self.there._replace(id=1)
        self.regions: dict[int, RemoteRegion] = {1: sender.attach("r", region)}

    def move(self, source: int, target: int, nbytes: int) -> Move:
        return Move(self.source.address + source, 1, target, nbytes)

    async def write(self, *moves: Move) -> None:
        await self.sender.write("r", moves, self.regions)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


class Pair:
    """Two agents (:mod:`.engine_agent`): one may write into the other's memory."""

    def __init__(self, processes: Processes, module: str, **job: Any) -> None:
        self._processes = processes
        self._module = module
        self._job = {"nbytes": 256 * MIB, **job}
        self.sender: Process = processes.start(module, role="sender", **self._job)
        self.receiver = self.another()
        self.peer = "first"

    def another(self) -> Process:
        """One more receiver."""
        return self._processes.start(self._module, role="receiver", **self._job)

    async def meet(self) -> None:
        await self.sender.do("meet", peer=self.peer, told=await self.receiver.do("tell"))

    async def part(self) -> None:
        await self.sender.do("part", peer=self.peer)

    async def write(self, *moves: tuple[int, int, int], patience: float = 20.0) -> float:
        taken: float = await self.sender.do("write", peer=self.peer, moves=moves, patience=patience)
        return taken

    def begin(self, *moves: tuple[int, int, int]) -> None:
        """Let it write; ``sender.answer()`` is the end."""
        self.sender.tell("write", peer=self.peer, moves=moves)

    async def arrives(self, fill: int, offset: int = 0, nbytes: int = MIB) -> None:
        """Write a pattern, and see it there."""
        await self.sender.do("fill", offset=0, nbytes=nbytes, fill=fill)
        await self.write((0, offset, nbytes))
        assert await self.receiver.do("count", offset=offset, nbytes=nbytes, fill=fill) == nbytes


async def descriptors_come_down(process: Process, most: int) -> None:
    """Connections to those that have gone are given back."""
    limit = time.monotonic() + 10
    while (now := (await process.do("state"))[2]) > most:
        assert time.monotonic() < limit, f"{now} descriptors, not {most}"
        await asyncio.sleep(0.01)
