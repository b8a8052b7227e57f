"""An agent with an engine and memory: one writes into the other's.

In: an engine, the size of its memory. Out: orders as for :mod:`tests.cases.orders`.
Never: knows whose engine it is.
"""

from __future__ import annotations

import base64
import ctypes
import os
import time
from typing import Any

from omni_async.abc import Engine, RemoteRegion
from omni_async.model import Move, Region
from omni_async.pool.memory import AnonymousMemory
from tests.cases.orders import Orders


class EngineAgent(Orders):
    """A subclass makes the engine."""

    refuses = True
    """Whether withdrawn pages refuse late bytes."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.engine = self.make_engine(job)
        self.block = AnonymousMemory(refuses=self.refuses).allocate(job["nbytes"])
        self.region = self.engine.register(self.block.address, self.block.nbytes)
        self.remote: dict[str, dict[int, RemoteRegion]] = {}

    def make_engine(self, job: dict[str, Any]) -> Engine:
        raise NotImplementedError

    async def do_tell(self) -> Any:
        """What a peer has to know."""
        words = [self.engine.describe(), self.region.descriptor]
        told = [base64.b64encode(word).decode() for word in words]
        return [*told, self.region.address, self.region.nbytes]

    async def do_meet(self, peer: str, told: list[Any]) -> Any:
        descriptor, region = read_told(told)
        self.engine.meet(peer, descriptor)
        self.remote[peer] = {1: self.engine.attach(peer, region)}

    async def do_part(self, peer: str) -> Any:
        self.engine.part(peer)

    async def do_fill(self, offset: int, nbytes: int, fill: int) -> Any:
        ctypes.memset(self.block.address + offset, fill, nbytes)

    async def do_write(self, peer: str, moves: list[tuple[int, int, int]]) -> Any:
        """From, to (offsets) and length of each; the seconds it took."""
        begun = time.perf_counter()
        await self.engine.write(
            peer,
            [Move(self.block.address + a, 1, b, n) for a, b, n in moves],
            self.remote[peer],
        )
        return time.perf_counter() - begun

    async def do_count(self, offset: int, nbytes: int, fill: int) -> Any:
        """How many bytes there are ``fill``."""
        return bytes(self.block.view(offset, nbytes)).count(fill)

    async def do_stop_when(self, offset: int, fill: int, pid: int, number: int) -> Any:
        """Send a signal as soon as that byte is ``fill``; where all that had come then ends."""
        view = self.block.view()
        while view[offset] != fill:
            pass
        os.kill(pid, number)

    async def do_withdraw(self, offset: int, nbytes: int) -> Any:
        self.block.withdraw(offset, nbytes)

    async def do_state(self) -> Any:
        """CPU seconds, threads and descriptors of the process."""
        counts = [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]
        return [time.process_time(), *counts]

    async def do_close(self) -> Any:
        self.engine.close()


def read_told(told: list[Any]) -> tuple[bytes, Region]:
    """What ``tell`` answered: the engine's descriptor and the memory, as region 1."""
    descriptor, memory, address, nbytes = told
    region = Region(1, address, nbytes, base64.b64decode(memory), -1)
    return base64.b64decode(descriptor), region
