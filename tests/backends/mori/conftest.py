"""The vendor's double instead of its library, in both interfaces, and engines on it.

In: nothing. Out: two engines of one process, with memory.
Never: leaves the double behind as the vendor's module, or anything done that a real library would not survive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from omni_async.abc import RemoteRegion
from omni_async.backends.mori import MoriTransferEngineOptions
from omni_async.backends.mori._native import Native
from omni_async.backends.mori.engine import MoriEngine
from omni_async.model import Move, Region, Role
from omni_async.pool.memory import AnonymousMemory, MappedBlock
from omni_async.testing.doubles.mori import MISUSE, install, uninstall
from omni_async.testing.doubles.ordered import ORDERED

MIB = 1 << 20
SIZE = 16 * MIB


@pytest.fixture(params=[pytest.param("1.0", marks=pytest.mark.soak), "1.2"])
def api(request: pytest.FixtureRequest) -> Iterator[str]:
    """The vendor's module is the double, in this interface."""
    install(request.param)
    yield request.param
    ORDERED.clear()
    uninstall()
    assert not MISUSE
    MISUSE.clear()


def told(**extra: Any) -> MoriTransferEngineOptions:
    """Options, as ``extra`` tells them."""
    return MoriTransferEngineOptions.model_validate(extra)


def settled() -> None:
    """No GPU has anything to do."""


def native(**extra: Any) -> Native:
    return Native(told(**extra), "127.0.0.1", settled)


class Both:
    """A sender's engine and a receiver's, with memory of each."""

    def __init__(self, **extra: Any) -> None:
        self.extra = extra
        self.made: list[Native] = []
        self.sender, self.receiver = self.engine("sender"), self.engine("receiver")
        self.source: MappedBlock = AnonymousMemory().allocate(SIZE)
        self.target: MappedBlock = AnonymousMemory().allocate(SIZE)
        self.here = self.sender.register(self.source.address, SIZE)
        self.there = self.receiver.register(self.target.address, SIZE)
        self.sender.meet("r", self.receiver.describe())
        self.receiver.meet("s", self.sender.describe())
        self.regions: dict[int, RemoteRegion] = {1: self.attached(self.there)}

    def engine(self, role: Role) -> MoriEngine:
        return MoriEngine(self.native(), self.native, role, self.extra.get("device", "cpu"))

    def native(self) -> Native:
        extra = {name: value for name, value in self.extra.items() if name != "device"}
        self.made.append(native(**extra))
        return self.made[-1]

    def attached(self, region: Region) -> RemoteRegion:
        return self.sender.attach("r", region._replace(id=1))

    def move(self, source: int, target: int, nbytes: int) -> Move:
        return Move(self.source.address + source, 1, target, nbytes)

    async def write(self, *moves: Move) -> None:
        await self.sender.write("r", moves or [self.move(0, 0, MIB)], self.regions)

    def fill(self, fill: int, nbytes: int = SIZE) -> None:
        self.source.view(0, nbytes)[:] = bytes([fill]) * nbytes

    def count(self, fill: int) -> int:
        """Bytes at the receiver's."""
        return bytes(self.target.view()).count(fill)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        self.source.close()
        self.target.close()


@pytest.fixture
async def both(api: str) -> AsyncIterator[Both]:
    """Over RDMA."""
    made = Both()
    yield made
    made.close()


@pytest.fixture
async def on_gpus(api: str) -> AsyncIterator[Both]:
    """Over XGMI, with what the double takes for memory of a GPU."""
    made = Both(backend_type="xgmi", memory_pool_device="cuda", device="cuda:0")
    yield made
    made.close()
