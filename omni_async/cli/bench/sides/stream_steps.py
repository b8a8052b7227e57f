"""What the sides of the streams' benchmark that are ours have in common: an edge, and steps that are asked for.

In: a job, steps on the control line. Out: an edge of an open transport; answers.
Never: knows how a side moves its chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import omni_async

from ..chunks import cpu_seconds, settle
from ..line import Line
from .ours import opened


class StreamSide(Protocol):
    """A producer or a consumer of one batch at a time."""

    async def open(self, batch: dict[str, Any]) -> dict[str, Any]: ...

    async def run(self) -> dict[str, Any]: ...


@contextlib.asynccontextmanager
async def edge_of(job: dict[str, Any]) -> AsyncIterator[omni_async.Edge]:
    """This side's end of the edge."""
    import torch

    torch.set_num_threads(1)
    async with opened(job) as transport:
        yield transport.edge("0", "1")


async def serve(line: Line, side: StreamSide) -> None:
    """Serve steps until the line closes."""
    settle()
    await line.send_async({"ready": True})
    while True:
        step = await line.receive_async()
        answer: dict[str, Any] = {}
        if step["do"] == "open":
            answer = await side.open(step)
        elif step["do"] == "idle":
            answer = await _idle(step["seconds"])
        elif step["do"] == "run":
            answer = await side.run()
        await line.send_async(answer)


async def _idle(seconds: float) -> dict[str, Any]:
    """CPU time of doing nothing."""
    used = cpu_seconds()
    await asyncio.sleep(seconds)
    return {"cpu": cpu_seconds() - used}
