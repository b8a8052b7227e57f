"""A client of a worker in an interpreter of its own: ``python -m tests.backends.yuanrong.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tests.backends.store_agent import StoreAgent
from tests.cases.orders import follow

from .desk import YuanrongDesk, opened


class Agent(StoreAgent[YuanrongDesk]):
    """What is to be seen of the datasystem and its client."""

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

    async def do_put_again_and_again(
        self, name: str, fill: int, nbytes: int, times: int, pieces: int
    ) -> Any:
        for _ in range(times):
            await self.there.put(name, bytes([fill]) * (nbytes + fill), pieces)
        return times


if __name__ == "__main__":
    follow(Agent)
