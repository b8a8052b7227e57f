"""What tests of the real engine need: the engine, and agents that have one too.

In: a machine. Out: engines and led processes; a skip where the vendor's package cannot be loaded.
Never: leaves a process behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from omni_async.backends.mooncake import _native
from omni_async.backends.mooncake.engine import MooncakeEngine
from tests.cases.processes import Process, Processes
from tests.mooncake import engine_or_skip

AGENT = "tests.backends.mooncake.agent"
MIB = 1 << 20


@pytest.fixture(scope="session")
def native() -> _native.NativeEngine:
    """This process's engine."""
    return engine_or_skip()


@pytest.fixture
async def engine(native: _native.NativeEngine) -> AsyncIterator[MooncakeEngine]:
    """A sender's engine."""
    made = MooncakeEngine(native, "sender", "cpu", pins=False)
    yield made
    made.close()


class Pair:
    """Two agents: one may write into the other's memory."""

    def __init__(self, processes: Processes, **job: Any) -> None:
        job = {"nbytes": 256 * MIB, **job}
        self.sender: Process = processes.start(AGENT, role="sender", **job)
        self.receiver: Process = processes.start(AGENT, role="receiver", **job)

    async def meet(self) -> None:
        told = await self.receiver.do("tell")
        await self.sender.do("meet", told=told)

    async def write(self, *moves: tuple[int, int, int]) -> float:
        taken: float = await self.sender.do("write", moves=moves)
        return taken

    async def arrives(self, fill: int, offset: int = 0, nbytes: int = MIB) -> None:
        """Write a pattern, and see it there."""
        await self.sender.do("fill", offset=0, nbytes=nbytes, fill=fill)
        await self.write((0, offset, nbytes))
        assert await self.receiver.do("count", offset=offset, nbytes=nbytes, fill=fill) == nbytes


@pytest.fixture
def processes(namespace: str, native: _native.NativeEngine) -> Iterator[Processes]:
    with Processes(namespace) as started:
        yield started


@pytest.fixture(params=["asyncio", "uvloop"])
async def pair(processes: Processes, request: pytest.FixtureRequest) -> Pair:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    pair = Pair(processes, loop=request.param)
    await pair.meet()
    return pair


@pytest.fixture
async def one_pair(processes: Processes) -> Pair:
    """The same on asyncio alone, where the loop makes no difference."""
    pair = Pair(processes)
    await pair.meet()
    return pair
