"""What the cases need: pairs of transports, and agents in processes of their own.

In: a namespace. Out: open transports and led processes.
Never: leaves a process behind.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import omni_async
from tests.cases.processes import Processes


@pytest.fixture(params=["shm", "memory"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.asynccontextmanager
async def open_pair(
    backend: str, namespace: str, **extra: Any
) -> AsyncIterator[tuple[omni_async.Transport, omni_async.Transport]]:
    """A sender of stage 0 and a receiver of stage 1 in this loop."""
    name = {"shm": "SharedMemoryConnector"}.get(backend, backend)
    spec = {"name": name, "extra": extra}
    async with (
        omni_async.open_transport(
            spec, role="sender", stage="0", namespace=namespace, linger=0
        ) as sender,
        omni_async.open_transport(
            spec, role="receiver", stage="1", namespace=namespace
        ) as receiver,
    ):
        yield sender, receiver


@pytest.fixture
async def pair(
    backend: str, namespace: str
) -> AsyncIterator[tuple[omni_async.Transport, omni_async.Transport]]:
    async with open_pair(backend, namespace) as both:
        yield both


@pytest.fixture
def processes(namespace: str) -> Iterator[Processes]:
    with Processes(namespace) as started:
        yield started


@pytest.fixture
def shm_listing(namespace: str) -> Iterator[None]:
    """/dev/shm holds nothing of the test afterwards; the names of others come and go."""
    before = set(os.listdir("/dev/shm"))
    yield
    words = (namespace, "omni_async", "omni-async")
    new = set(os.listdir("/dev/shm")) - before
    assert not [name for name in new if any(word in name for word in words)]
