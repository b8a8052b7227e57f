"""What the cases need: pairs of transports, and agents in processes of their own.

In: a namespace. Out: open transports and led processes.
Never: leaves a process behind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

import omni_async
from tests.cases.processes import Processes
from tests.pairs import open_pair


@pytest.fixture(params=["shm", "memory"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
