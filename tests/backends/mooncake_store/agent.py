"""A client of the store in an interpreter of its own: ``python -m tests.backends.mooncake_store.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from typing import Any

from omni_async import KeyExists, OmniAsyncError
from omni_async.abc import Store
from omni_async.backends.mooncake_store import MooncakeStoreBackend
from omni_async.cli.bench.line import Line, LineClosed

from .desk import Desk

LONG = 200_000


class Agent:
    """Carries out orders; each is a method."""

    def __init__(self, line: Line, job: dict[str, Any]) -> None:
        self.line = line
        os.environ.update(job.get("environment", {}))
        self.desk: Desk | None = None
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
    def there(self) -> Desk:
        assert self.desk is not None, "open comes first"
        return self.desk

    async def do_open(self) -> Any:
        self.desk = Desk(await opened(self.extra))
        return os.getpid()

    async def do_put(self, name: str, fill: int, nbytes: int) -> Any:
        """The seconds it took."""
        begun = time.perf_counter()
        await self.there.put(name, bytes([fill]) * nbytes)
        return time.perf_counter() - begun

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


def main() -> None:
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    asyncio.run(Agent(line, line.receive()).run())


if __name__ == "__main__":
    main()
