"""What every test may use.

In: pytest. Out: names that no other test, run or clone of the repository uses at the same time.
Never: decides what is tested.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_async.testing import leaks

PEER_WHEEL = "OMNI_ASYNC_PEER_WHEEL"


@pytest.fixture
def namespace() -> str:
    """A pipeline name of this test alone, so that runs side by side never meet."""
    return f"test-{os.getpid()}-{uuid.uuid4().hex[:12]}"


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
        clients = "omni_async.backends.mooncake_store._native" in sys.modules
        return foreign(trace) or (clients and _goes_nowhere(trace))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "_foreign", looks)
        yield


def _goes_nowhere(trace: leaks.Trace) -> bool:
    if trace.kind != "descriptor" or "socket:[" not in trace.name:
        return False
    inode = trace.name.rpartition("[")[2].rstrip("]")
    tables = [Path("/proc/net") / table for table in ("tcp", "tcp6", "unix", "udp", "udp6")]
    rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
    there = [row for row in rows if inode in row]
    established, listening = "01", "0A"
    return not any(row[3] in (established, listening) or len(row) < 10 for row in there)
