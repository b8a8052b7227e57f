"""Where tests of both ends of KV caches run: over each double, over the one that writes, behind a proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omni_async.cli.free_ports import FreePorts
from omni_async.registry import register_backend
from omni_async.testing.doubles.addressed import LoopbackZmq
from tests.ends import Ends, ends
from tests.kv.houses import House
from tests.kv.pairs import DOUBLES, loopbacks


@pytest.fixture
def doubles() -> Iterator[None]:
    with loopbacks():
        yield


@pytest.fixture(params=DOUBLES)
def where(request: pytest.FixtureRequest, namespace: str, doubles: None) -> Iterator[Ends]:
    with ends(request.param, namespace) as found:
        yield found


@pytest.fixture
def written(namespace: str, doubles: None) -> Iterator[Ends]:
    with ends("loopback-write", namespace) as found:
        yield found


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


@pytest.fixture(params=["shm", "loopback-zmq"])
def backend(request: pytest.FixtureRequest) -> str:
    register_backend(LoopbackZmq())
    name: str = request.param
    return name


@pytest.fixture
def house(ports: FreePorts, namespace: str, backend: str) -> House:
    return House(ports, namespace, backend, "write")
