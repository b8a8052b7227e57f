"""A client of a worker in an interpreter of its own: ``python -m tests.backends.yuanrong.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

from omni_async import OmniAsyncError
from omni_async.cli.bench.line import Line, LineClosed

from .desk import YuanrongDesk, opened


class Agent:
    """Carries out orders; each is a method."""

    def __init__(self, line: Line, job: dict[str, Any]) -> None:
        self.line = line
        self.desk: YuanrongDesk | None = None
        self.extra: dict[str, Any] = job["extra"]

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

    @property
    def there(self) -> YuanrongDesk:
        assert self.desk is not None, "open comes first"
        return self.desk

    async def do_open(self) -> Any:
        """The process of its client."""
        self.desk = YuanrongDesk(await opened(self.extra))
        return self.desk.line.pid

    async def do_client(self) -> Any:
        return self.there.line.pid

    async def do_share(self) -> Any:
        """Leave our end of the client's socket to a process that outlives this one."""
        fd = os.dup(self.there.line._sock.fileno())
        return (await asyncio.create_subprocess_exec("sleep", "60", pass_fds=[fd])).pid

    async def do_put(self, name: str, fill: int, nbytes: int) -> Any:
        await self.there.put(name, bytes([fill]) * nbytes)
        return nbytes

    async def do_put_again_and_again(
        self, name: str, fill: int, nbytes: int, times: int, pieces: int
    ) -> Any:
        for _ in range(times):
            await self.there.put(name, bytes([fill]) * (nbytes + fill), pieces)
        return times


def main() -> None:
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    asyncio.run(Agent(line, line.receive()).run())


if __name__ == "__main__":
    main()
