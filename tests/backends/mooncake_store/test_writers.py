"""Two processes put one key again and again while others read it: whoever reads has one whole object, or can tell.

A reader that deletes lets the next object be written where another one is reading.
"""

from __future__ import annotations

import asyncio

from omni_async.cli.servers.mooncake import MooncakeMaster

from .agent import LONG
from .conftest import Open, StartAgent
from .desk import Desk

NAME = "contested@0_1"
TIMES = 200


async def test_two_processes_put_one_key(
    mooncake_master: MooncakeMaster, start_agent: StartAgent, open_desk: Open
) -> None:
    writers = [
        await start_agent(mooncake_master.extra("sender")),
        await start_agent({**mooncake_master.extra("receiver"), "segment": 0}),
    ]
    extra = {**mooncake_master.extra("receiver"), "segment": 0}
    readers = [await open_desk(extra), await open_desk(extra)]
    done = asyncio.Event()

    async def read(desk: Desk) -> int:
        """Read and delete, as a receiver does; how often something was there."""
        found = 0
        while not done.is_set():
            data = await desk.get(NAME)
            if data is not None and data[:16] == data[-16:]:  # else it was replaced meanwhile
                found += 1
                body = data[16:-16]
                assert body == body[-1:] * (LONG + body[-1])
                await desk.delete(NAME, own=True)
        return found

    reading = [asyncio.ensure_future(read(desk)) for desk in readers]
    await asyncio.gather(
        *(
            writer.do("put_again_and_again", name=NAME, fill=at, times=TIMES, patience=40)
            for at, writer in enumerate(writers, 1)
        )
    )
    done.set()
    assert sum(await asyncio.gather(*reading)) > TIMES / 2
    await readers[0].delete(NAME, own=True)
