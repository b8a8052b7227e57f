"""Pools over real memory, and a registrar that notes what an engine would be told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from omni_async.abc import Block, MemorySource
from omni_async.model import Region
from omni_async.pool import AnonymousMemory, DropQueue, Lease, MemfdMemory, Pool

Pools = Callable[..., Pool]


async def settle(queue: DropQueue) -> None:
    """Turns of the loop until the queue is empty."""
    await asyncio.sleep(0)
    for _ in range(1000):
        if not len(queue):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(queue)} tokens are stuck")


async def asked(result: Lease | Awaitable[Lease]) -> Lease:
    """What ``lease_nowait`` and ``lease`` gave, alike."""
    return result if isinstance(result, Lease) else await result


class Registrar:
    """What an engine sees of a pool."""

    def __init__(self) -> None:
        self.registered: list[Region] = []
        self.unregistered: list[Region] = []
        self.grown: list[Region] = []
        self.shrunk: list[Region] = []
        self.fail: Exception | None = None

    def register(self, block: Block) -> Region:
        if self.fail is not None:
            raise self.fail
        region = Region(len(self.registered) + 1, block.address, block.nbytes, b"", block.fd)
        self.registered.append(region)
        return region

    def unregister(self, region: Region) -> None:
        assert region not in self.unregistered
        self.unregistered.append(region)


@pytest.fixture
def registrar() -> Registrar:
    return Registrar()


@pytest.fixture(params=["memfd", "anonymous"])
def source(request: pytest.FixtureRequest) -> MemorySource:
    return MemfdMemory() if request.param == "memfd" else AnonymousMemory()


@pytest.fixture
def make_pool(registrar: Registrar) -> Iterator[Pools]:
    """``make_pool(limit=…, …)``; pools are closed at the end and must have let go of everything."""
    made: list[Pool] = []

    def make(limit: int, **options: Any) -> Pool:
        options.setdefault("source", MemfdMemory())
        pool = Pool(
            limit=limit,
            register=registrar.register,
            unregister=registrar.unregister,
            **options,
        )
        pool.on_grow = registrar.grown.append
        pool.on_shrink = registrar.shrunk.append
        made.append(pool)
        return pool

    yield make
    for pool in made:
        assert pool.close() == 0
    assert registrar.unregistered == sorted(registrar.registered) or set(
        registrar.unregistered
    ) == set(registrar.registered)
