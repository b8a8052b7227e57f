"""What tests of the real engine need: the engine, and agents that have one too.

In: a machine. Out: engines and led processes; a skip where the vendor's package cannot be loaded.
Never: leaves a process behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from omni_async.backends.mooncake import _native
from omni_async.backends.mooncake.engine import MooncakeEngine
from tests.backends.engine_pair import Pair
from tests.cases.processes import Processes
from tests.mooncake import engine_or_skip

AGENT = "tests.backends.mooncake.agent"


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


@pytest.fixture
def processes(namespace: str, native: _native.NativeEngine) -> Iterator[Processes]:
    with Processes(namespace) as started:
        yield started


@pytest.fixture(params=["asyncio", "uvloop"])
async def pair(processes: Processes, request: pytest.FixtureRequest) -> Pair:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    pair = Pair(processes, AGENT, loop=request.param)
    await pair.meet()
    return pair


@pytest.fixture
async def one_pair(processes: Processes) -> Pair:
    """The same on asyncio alone, where the loop makes no difference."""
    pair = Pair(processes, AGENT)
    await pair.meet()
    return pair
