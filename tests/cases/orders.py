"""What every agent does: it carries out the orders of a test until that hangs up.

In: orders on a socket. Out: what came of each, errors of the library by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from omni_async import OmniAsyncError
from omni_async.cli.bench.line import Line, LineClosed


class Orders:
    """Its methods ``do_...`` are the table of orders; an instance belongs to its event loop."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job

    async def carry_out(self, line: Line) -> None:
        while True:
            try:
                order = await line.receive_async()
            except LineClosed:
                return
            try:
                answer = await getattr(self, "do_" + order.pop("do"))(**order)
            except OmniAsyncError as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            await line.send_async(answer)


async def _carry_out(agent: type[Orders], line: Line, job: dict[str, Any]) -> None:
    await agent(job).carry_out(line)


def follow(agent: type[Orders]) -> None:
    """The whole of an agent's process; the job comes first on the socket whose number it is told."""
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    job = line.receive()
    if job.get("loop") == "uvloop":
        import uvloop

        uvloop.run(_carry_out(agent, line, job))
    else:
        asyncio.run(_carry_out(agent, line, job))
