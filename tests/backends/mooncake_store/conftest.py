"""What tests of the real store need: a master, clients of it here and in other processes.

In: a machine. Out: stores with memory beside them; a skip where the vendor's package cannot be loaded.
Never: leaves a server or a process behind.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from omni_async.cli.servers.mooncake import MooncakeMaster
from tests.cases.processes import Process, Processes
from tests.stores import mooncake_master, mooncake_store_or_skip

from .agent import opened
from .desk import ROOM, Desk

__all__ = ["mooncake_master"]

AGENT = "tests.backends.mooncake_store.agent"
MIB = 1 << 20
SEGMENT = 64 * MIB

Open = Callable[..., Awaitable[Desk]]


@pytest.fixture
async def open_desk() -> AsyncIterator[Open]:
    """Opens stores, and closes them in the end."""
    desks: list[Desk] = []

    async def open_one(extra: dict[str, Any], room: int = ROOM) -> Desk:
        desks.append(Desk(await opened(extra), room))
        return desks[-1]

    yield open_one
    for desk in desks:
        await desk.store.close()


@pytest.fixture
async def owner(mooncake_master: MooncakeMaster, open_desk: Open) -> Desk:
    """A client with a segment of its own."""
    return await open_desk({**mooncake_master.extra("sender"), "segment": SEGMENT})


@pytest.fixture
async def guest(mooncake_master: MooncakeMaster, owner: Desk, open_desk: Open) -> Desk:
    """A client without: what it puts lies with the other one."""
    return await open_desk({**mooncake_master.extra("receiver"), "segment": 0})


@pytest.fixture
def own_master() -> Iterator[MooncakeMaster]:
    """A master of this test alone, not started yet, soon sure that a client is dead."""
    mooncake_store_or_skip()
    master = MooncakeMaster("--client_ttl=3", segment=SEGMENT)
    yield master
    master.kill()  # it needs a second to end in peace
    master.close()


@pytest.fixture
def processes(namespace: str) -> Iterator[Processes]:
    with Processes(namespace) as started:
        yield started


StartAgent = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start_agent(processes: Processes) -> AsyncIterator[StartAgent]:
    """Starts a process with a client that is set up."""
    agents: list[Process] = []

    async def start_one(extra: dict[str, Any], **job: Any) -> Process:
        agents.append(processes.start(AGENT, extra=extra, **job))
        await agents[-1].do("open")
        return agents[-1]

    yield start_one
    for agent in agents:
        # A shared master would go on giving away the memory of one that was killed.
        if agent.process.poll() is None:
            agent.signal(signal.SIGCONT)
            await agent.leave()
