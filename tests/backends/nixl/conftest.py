"""What tests of the real engine need: the library, and agents that have it too.

In: a machine. Out: engines and led processes; a skip where the vendor's package cannot be loaded.
Never: leaves a process behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.engine_pair import Pair
from tests.cases.processes import Processes
from tests.engines import need_nixl

AGENT = "tests.backends.nixl.agent"


@pytest.fixture(scope="session")
def library() -> None:
    """The vendor's library can be loaded."""
    need_nixl()


@pytest.fixture
def processes(namespace: str, library: None) -> Iterator[Processes]:
    with Processes(namespace) as started:
        yield started


@pytest.fixture(params=["", "tcp"], ids=["default", "tcp"])
async def pair(processes: Processes, request: pytest.FixtureRequest) -> Pair:
    """Two that have met, by what UCX takes within one host, and by TCP."""
    pair = Pair(processes, AGENT, tls=request.param)
    await pair.meet()
    return pair


@pytest.fixture
async def over_tcp(processes: Processes) -> Pair:
    pair = Pair(processes, AGENT, tls="tcp")
    await pair.meet()
    return pair
