"""What tests of the real engine need: the library, and agents that have it too.

In: a machine. Out: engines and led processes; a skip where the vendor's package cannot be loaded.
Never: leaves a process behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases.processes import Process, Processes
from tests.engines import need_nixl

AGENT = "tests.backends.nixl.agent"
MIB = 1 << 20


@pytest.fixture(scope="session")
def library() -> None:
    """The vendor's library can be loaded."""
    need_nixl()


class Pair:
    """Two agents: one may write into the other's memory."""

    def __init__(self, processes: Processes, tls: str = "", nbytes: int = 256 * MIB) -> None:
        self._processes = processes
        self._job: dict[str, Any] = {"nbytes": nbytes, "tls": tls}
        self.sender: Process = processes.start(AGENT, role="sender", **self._job)
        self.receiver = self.another()
        self.peer = "first"

    def another(self) -> Process:
        """One more receiver."""
        return self._processes.start(AGENT, role="receiver", **self._job)

    async def meet(self) -> None:
        await self.sender.do("meet", peer=self.peer, told=await self.receiver.do("tell"))

    async def write(self, *moves: tuple[int, int, int], patience: float = 20.0) -> float:
        taken: float = await self.sender.do("write", peer=self.peer, moves=moves, patience=patience)
        return taken

    def begin(self, *moves: tuple[int, int, int]) -> None:
        """Let it write; ``sender.answer()`` is the end."""
        self.sender.tell("write", peer=self.peer, moves=moves)

    async def arrives(self, fill: int, offset: int = 0, nbytes: int = MIB) -> None:
        """Write a pattern, and see it there."""
        await self.sender.do("fill", offset=0, nbytes=nbytes, fill=fill)
        await self.write((0, offset, nbytes))
        assert await self.receiver.do("count", offset=offset, nbytes=nbytes, fill=fill) == nbytes


@pytest.fixture
def processes(namespace: str, library: None) -> Iterator[Processes]:
    with Processes(namespace) as started:
        yield started


@pytest.fixture(params=["", "tcp"], ids=["default", "tcp"])
async def pair(processes: Processes, request: pytest.FixtureRequest) -> Pair:
    """Two that have met, by what UCX takes within one host, and by TCP."""
    pair = Pair(processes, request.param)
    await pair.meet()
    return pair


@pytest.fixture
async def over_tcp(processes: Processes) -> Pair:
    pair = Pair(processes, "tcp")
    await pair.meet()
    return pair
