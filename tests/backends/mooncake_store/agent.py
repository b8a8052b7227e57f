"""A client of the store in an interpreter of its own: ``python -m tests.backends.mooncake_store.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from omni_async import KeyExists
from omni_async.abc import Store
from omni_async.backends.mooncake_store import MooncakeStoreBackend
from tests.backends.store_agent import StoreAgent
from tests.cases.orders import follow

from .desk import Desk

LONG = 200_000


class Agent(StoreAgent[Desk]):
    """What is to be seen of Mooncake's store."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        os.environ.update(job.get("environment", {}))

    async def do_open(self) -> Any:
        self.desk = Desk(await opened(self.extra))
        return os.getpid()

    async def do_get(self, name: str) -> Any:
        """Its first byte and length; whether all bytes are the same."""
        data = await self.there.get(name)
        return None if data is None else [data[0], len(data), data.count(data[0]) == len(data)]

    async def do_elsewhere(self, name: str) -> Any:
        """The size of what lies with others."""
        return self.there.store._client._size_elsewhere(name)  # type: ignore[attr-defined]

    async def do_begin(self, name: str, nbytes: int) -> Any:
        """Begin to put and do not go on: the object is being written from here on."""
        client = self.there.store._client  # type: ignore[attr-defined]
        return client._native.batch_put_session_start([name], [nbytes], client._pin)

    async def do_put_again_and_again(self, name: str, fill: int, times: int) -> Any:
        """Put one key until it has worked that often; how often it did not."""
        refused = 0
        for _ in range(times):
            while True:
                try:
                    # As the objects of transports, each begins and ends with a number of its own.
                    number = os.urandom(16)
                    body = bytes([fill]) * (LONG + fill)
                    await self.there.put(name, number + body + number)
                    break
                except KeyExists:
                    refused += 1
                    await asyncio.sleep(0.001)
        return refused

    async def do_close(self) -> Any:
        begun = time.perf_counter()
        await self.there.store.close()
        return time.perf_counter() - begun


async def opened(extra: dict[str, Any]) -> Store:
    """A store with these options."""
    backend = MooncakeStoreBackend()
    options = await backend.prepare(backend.options.model_validate(extra), "sender")
    return await backend.store(options, "sender")


if __name__ == "__main__":
    follow(Agent)
