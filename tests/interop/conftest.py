"""The other side of a wire that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omni_async import registry
from omni_async.cli.free_ports import FreePorts
from omni_async.testing.doubles.loopback import FAULTS

from .double import SessionDouble

if TYPE_CHECKING:
    from .child import Child

CONNECTORS = "vllm_omni/distributed/omni_connectors"


@pytest.fixture(scope="session")
def omni_wheel(peer_wheel: Path) -> Path:
    """The unpacked wheel, with its connectors."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    if not (peer_wheel / CONNECTORS).is_dir():
        pytest.skip(f"{peer_wheel} has no {CONNECTORS}: unpack the whole wheel")
    return peer_wheel


@pytest.fixture(scope="session")
def theirs(omni_wheel: Path) -> Iterator[Child]:
    """vLLM-Omni's own serializer: ``serialize`` and ``deserialize``."""
    from .child import Child

    child = Child("serializer", str(omni_wheel))
    yield child
    child.close()


@pytest.fixture(scope="session")
def their_kv(omni_wheel: Path) -> Iterator[Child]:
    """vLLM-Omni's own KV manager and what belongs to it: see :class:`.kv_manager.Managers`."""
    from .child import Child

    child = Child("managers", str(omni_wheel))
    yield child
    child.close()


@pytest.fixture
def session_double() -> Iterator[None]:
    """The loopback engine under a name that others find it by."""
    registry.register_backend(SessionDouble())
    yield
    FAULTS.clear()


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


@pytest.fixture
def port(ports: FreePorts) -> int:
    return ports.of("one")


@pytest.fixture
def other_port(ports: FreePorts) -> int:
    return ports.of("other")
