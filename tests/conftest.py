"""What every test may use.

In: pytest. Out: names that no other test, run or clone of the repository uses at the same time.
Never: decides what is tested.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_async import registry
from omni_async.testing import leaks
from tests.lost_masters import looks_for_a_master

PEER_WHEEL = "OMNI_ASYNC_PEER_WHEEL"


@pytest.fixture
def namespace() -> str:
    """A pipeline name of this test alone, so that runs side by side never meet."""
    return f"test-{os.getpid()}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> str:
    """``LaterConnector``, alias ``later``: right in a deploy file, but not part of this release."""
    options = "omni_async.backends.memory.config:MemoryOptions"
    monkeypatch.setitem(registry.PLANNED, "later", ("LaterConnector", options))
    return "LaterConnector"


@pytest.fixture(scope="session")
def peer_wheel() -> Path:
    """The unpacked wheel of vLLM-Omni 0.30.0, its `vllm_omni/deploy` at least."""
    folder = os.environ.get(PEER_WHEEL)
    if not folder:
        pytest.skip(f"{PEER_WHEEL} names no unpacked wheel of vllm-omni; `nox -s tests` sets it")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def lost_masters_are_looked_for() -> Iterator[None]:
    """A client of Mooncake's store looks for ever for a master that a test has killed, each time by new sockets.

    Other tests of this process do not take these for leaks of theirs: sockets that are connected to nobody.
    """
    foreign = leaks._foreign

    def looks(trace: leaks.Trace) -> bool:
        return foreign(trace) or (trace.kind == "descriptor" and looks_for_a_master(trace.name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "_foreign", looks)
        yield
