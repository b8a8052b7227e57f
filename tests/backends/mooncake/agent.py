"""An engine in an interpreter of its own, led by a test: ``python -m tests.backends.mooncake.agent FD``.

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
from omni_async.backends.mooncake._native import shared_engine
from omni_async.backends.mooncake.engine import MooncakeEngine
from omni_async.cli.bench.line import Line, LineClosed
from omni_async.model import Move, Region
from omni_async.pool.memory import AnonymousMemory

PEER = "peer"


class Agent:
    """Carries out orders; each is a method."""

    def __init__(self, line: Line, job: dict[str, Any]) -> None:
        self.line = line
        native = shared_engine(job.get("host", "127.0.0.1"), "tcp", "")
        self.engine = MooncakeEngine(native, job["role"], "cpu", pins=False)
        self.block = AnonymousMemory().allocate(job["nbytes"])
        self.region = self.engine.register(self.block.address, self.block.nbytes)
        self.remote: dict[int, RemoteRegion] = {}
        self.another: dict[int, RemoteRegion] = {}

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
        descriptor = base64.b64encode(self.engine.describe()).decode()
        return [descriptor, self.region.address, self.region.nbytes]

    async def do_meet(self, told: list[Any]) -> Any:
        descriptor, address, nbytes = told
        self.engine.meet(PEER, base64.b64decode(descriptor))
        self.remote[1] = self.engine.attach(PEER, Region(1, address, nbytes, b"", -1))

    async def do_fill(self, offset: int, nbytes: int, fill: int) -> Any:
        ctypes.memset(self.block.address + offset, fill, nbytes)

    async def do_write(self, moves: list[tuple[int, int, int]]) -> Any:
        """From, to (offsets) and length of each; the seconds it took."""
        begun = time.perf_counter()
        await self.engine.write(
            PEER, [Move(self.block.address + a, 1, b, n) for a, b, n in moves], self.remote
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

    async def do_meet_another(self, told: list[Any]) -> Any:
        descriptor, address, nbytes = told
        self.engine.meet("another", base64.b64decode(descriptor))
        self.another = {1: self.engine.attach("another", Region(1, address, nbytes, b"", -1))}

    async def do_write_another(self, moves: list[tuple[int, int, int]]) -> Any:
        begun = time.perf_counter()
        await self.engine.write(
            "another", [Move(self.block.address + a, 1, b, n) for a, b, n in moves], self.another
        )
        return time.perf_counter() - begun

    async def do_cut(self) -> Any:
        """End all connections that others have made to this engine; how many."""
        cut = 0
        for number in os.listdir("/proc/self/fd"):
            try:
                sock = socket.socket(fileno=os.dup(int(number)))
            except OSError:
                continue
            with sock:
                if (
                    sock.family == socket.AF_INET6
                    and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
                ):
                    sock.shutdown(socket.SHUT_RDWR)
                    cut += 1
        return cut

    async def do_age(self, seconds: float) -> Any:
        """Let the last write to the peer be that much longer ago."""
        self.engine._contacts[PEER]._used -= seconds

    async def do_part(self) -> Any:
        self.engine.part(PEER)

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
    job = line.receive()
    if job.get("loop") == "uvloop":
        import uvloop

        uvloop.run(_run(line, job))
    else:
        asyncio.run(_run(line, job))


if __name__ == "__main__":
    main()
