"""A transport in an interpreter of its own, led by a test: ``python -m tests.cases.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: imports torch (its start takes seconds), acts by itself.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from typing import Any

import numpy as np

import omni_async
from tests.cases.orders import Orders, follow


def pattern(fill: int, nbytes: int) -> Any:
    """``nbytes`` equal bytes: a mix of two patterns is seen at once."""
    return np.full(nbytes, fill, dtype=np.uint8)


class Agent(Orders):
    """One transport, and what it delivered."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.transport: Any = None
        self.opening: Any = None
        self.kept: dict[str, Any] = {}
        self.waiting: dict[str, asyncio.Task[Any]] = {}

    async def do_open(self) -> Any:
        self.opening = omni_async.open_transport(
            {"name": "SharedMemoryConnector", "extra": self.job.get("extra", {})},
            role=self.job["role"],
            stage=self.job.get("stage", "0" if self.job["role"] == "sender" else "1"),
            namespace=self.job["namespace"],
            linger=self.job.get("linger", 0.0),
        )
        self.transport = await self.opening.__aenter__()
        return os.getpid()

    async def do_put(self, key: str, fill: int = 0, nbytes: int = 0, **options: Any) -> Any:
        """Put a pattern, or ``value``; with both the pattern rides in the value as ``bulk``."""
        value = options.pop("value", None)
        if nbytes:
            bulk = pattern(fill, nbytes)
            value = bulk if value is None else {**value, "bulk": bulk}
        return (await self.transport.put("0", "1", key, value, **options)).nbytes

    async def do_put_series(self, count: int, nbytes: int, request_id: str | None = None) -> Any:
        for index in range(count):
            await self.transport.put(
                "0", "1", f"k{index}", pattern(index % 251, nbytes), request_id=request_id
            )

    async def do_get(self, key: str, timeout: float | None = 10.0, keep: bool = False) -> Any:
        delivery = await self.transport.get("0", "1", key, timeout=timeout)
        if keep:
            self.kept[key] = delivery
        if isinstance(delivery.value, np.ndarray):
            return bytes_of(delivery.value)
        return delivery.value

    async def do_get_series(self, count: int, pause: float = 0.0, timeout: float = 30.0) -> Any:
        """Take ``k0`` and so on; how many came whole, each a pattern of its own number."""
        whole = 0
        for index in range(count):
            delivery = await self.transport.get("0", "1", f"k{index}", timeout=timeout)
            whole += bytes_of(delivery.value)[0] == [index % 251]
            delivery.release()
            del delivery
            if pause:
                await asyncio.sleep(pause)
        return whole

    async def do_wait(self, key: str, timeout: float | None = None) -> Any:
        """Begin a get; :meth:`do_outcome` tells what became of it."""
        self.waiting[key] = asyncio.create_task(self._arrival(key, timeout))
        await asyncio.sleep(0.05)

    async def _arrival(self, key: str, timeout: float | None) -> float:
        delivery = await self.transport.get("0", "1", key, timeout=timeout)
        moment = time.perf_counter()
        delivery.release()
        return moment

    async def do_outcome(self, key: str) -> Any:
        return await self.waiting.pop(key)

    async def do_moment(self) -> Any:
        return time.perf_counter()

    async def do_look(self, key: str) -> Any:
        return bytes_of(self.kept[key].value)

    async def do_release(self, key: str) -> Any:
        self.kept.pop(key).release()

    async def do_health(self) -> Any:
        return self.transport.health().as_dict()

    async def do_cleanup(self, request_id: str) -> Any:
        return await self.transport.cleanup(request_id)

    async def do_cpu(self, seconds: float) -> Any:
        """Seconds of CPU this process used while it did nothing for ``seconds``."""
        begun = time.process_time()
        await asyncio.sleep(seconds)
        return time.process_time() - begun

    async def do_descriptors(self, spare: int) -> Any:
        """Leave room for only ``spare`` more descriptors."""
        soft = len(os.listdir("/proc/self/fd")) - 1 + spare
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )

    async def do_close(self) -> Any:
        self.kept.clear()
        await self.opening.__aexit__(None, None, None)


def bytes_of(array: Any) -> list[Any]:
    """The different bytes in it and how many there are in all."""
    return [sorted({int(item) for item in np.unique(array.view(np.uint8))}), int(array.nbytes)]


if __name__ == "__main__":
    follow(Agent)
