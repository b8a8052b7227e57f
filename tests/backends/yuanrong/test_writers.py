"""Two processes put one key again and again while others read it: whoever reads has one whole object."""

from __future__ import annotations

import asyncio

import pytest

from omni_async.cli.servers.yuanrong import YuanrongWorker

from .conftest import MIB, Open, StartAgent
from .desk import YuanrongDesk

TIMES = 200


@pytest.mark.parametrize("nbytes", [4096, MIB])
@pytest.mark.parametrize("pieces", [1, 2])
async def test_two_processes_put_one_key(
    yuanrong_worker: YuanrongWorker,
    start_agent: StartAgent,
    open_desk: Open,
    name: str,
    nbytes: int,
    pieces: int,
) -> None:
    writers = [await start_agent(yuanrong_worker) for _ in range(2)]
    readers = [await open_desk(yuanrong_worker, room=2 * MIB) for _ in range(2)]
    done = asyncio.Event()

    async def read(desk: YuanrongDesk) -> set[int]:
        """Whose objects were read."""
        seen: set[int] = set()
        while not done.is_set():
            data = await desk.get(name)
            if data is not None:
                assert data == data[:1] * (nbytes + data[0])
                seen.add(data[0])
        return seen

    reading = [asyncio.ensure_future(read(desk)) for desk in readers]
    times = TIMES if nbytes < MIB else TIMES // 4
    order = {"name": name, "nbytes": nbytes, "times": times, "pieces": pieces}
    await asyncio.gather(
        *(
            writer.do("put_again_and_again", fill=at, patience=60, **order)
            for at, writer in enumerate(writers, 1)
        )
    )
    done.set()
    assert set().union(*await asyncio.gather(*reading)) == {1, 2}
    await readers[0].delete(name)
