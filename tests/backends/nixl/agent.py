"""An engine in an interpreter of its own, led by a test: ``python -m tests.backends.nixl.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import socket
import sys
import time
from typing import Any

from omni_async import OmniAsyncError
from omni_async.abc import RemoteRegion
from omni_async.backends.nixl._native import Agent as NixlAgent
from omni_async.backends.nixl.engine import NixlEngine
from omni_async.cli.bench.line import Line, LineClosed
from omni_async.model import Move, Region
from omni_async.pool.memory import AnonymousMemory


class Agent:
    """Carries out orders; each is a method."""

    def __init__(self, line: Line, job: dict[str, Any]) -> None:
        self.line = line
        if job.get("tls"):
            os.environ["UCX_TLS"] = job["tls"]
        agent = NixlAgent("test", ["UCX"], 0, answers=job["role"] == "receiver")
        if job.get("name"):
            agent.name = job["name"]
        self.engine = NixlEngine(agent, job["role"], "cpu", ["UCX"], pins=False)
        self.block = AnonymousMemory(refuses=False).allocate(job["nbytes"])
        self.region = self.engine.register(self.block.address, self.block.nbytes)
        self.remote: dict[str, dict[int, RemoteRegion]] = {}

    async def run(self) -> None:
        while True:
            try:
                order = await self.line.receive_async()
            except LineClosed:
                return
            try:
                answer = await getattr(self, "do_" + order.pop("do"))(**order)
            except OmniAsyncError as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            await self.line.send_async(answer)

    async def do_tell(self) -> Any:
        """What a peer has to know."""
        words = [self.engine.describe(), self.region.descriptor]
        told = [base64.b64encode(word).decode() for word in words]
        return [*told, self.region.address, self.region.nbytes]

    async def do_meet(self, peer: str, told: list[Any]) -> Any:
        descriptor, memory, address, nbytes = told
        self.engine.meet(peer, base64.b64decode(descriptor))
        region = Region(1, address, nbytes, base64.b64decode(memory), -1)
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

    async def do_under_way(self) -> Any:
        return len(self.engine._watch)

    async def do_state(self) -> Any:
        """CPU seconds, threads and descriptors of the process."""
        counts = [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]
        return [time.process_time(), *counts]

    async def do_close(self) -> Any:
        self.engine.close()


async def _run(line: Line, job: dict[str, Any]) -> None:
    await Agent(line, job).run()


def main() -> None:
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    asyncio.run(_run(line, line.receive()))


if __name__ == "__main__":
    main()
