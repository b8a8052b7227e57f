"""Channel tests run on asyncio's and on uvloop's event loop, and leave no descriptor behind.

In: pytest. Out: loop factories, a leak check around every test.
Never: decides what is tested.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator

import pytest

from tests.descriptors import open_descriptors
from tests.lost_masters import looks_for_a_master

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment, unused-ignore]
else:
    uvloop.new_event_loop().close()  # its first loop opens a pipe that stays with the process

Factories = dict[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Factories:
    factories: Factories = {"asyncio": asyncio.new_event_loop}
    if uvloop is not None and item.path.name.startswith(("test_unix", "test_local", "test_zmq")):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lines over ZMQ on uvloop are left to the soak: they take long, and libzmq's descriptor is all of it that
    a loop looks at."""
    for item in items:
        if item.path.name.startswith("test_zmq") and "[uvloop" in item.name:
            item.add_marker(pytest.mark.soak)


def _open_fds() -> set[tuple[str, str]]:
    return set(open_descriptors().items())


@pytest.fixture(autouse=True)
def no_descriptor_left(request: pytest.FixtureRequest) -> Iterator[None]:
    # libzmq closes in a thread of its own, after last words have left; its context stays.
    patience = 0.0
    if request.path.name.startswith("test_zmq"):
        from omni_async.rendezvous.zmq_context import new_socket

        new_socket(1).close()
        patience = 3.0
    before = _open_fds()
    yield
    left = _open_fds() - before
    if left:
        gc.collect()  # what only a cycle keeps is still a leak of time, not of descriptors
        left = _open_fds() - before
    over = time.monotonic() + patience
    while left and time.monotonic() < over:
        time.sleep(0.01)
        left = _open_fds() - before
    left = {(number, what) for number, what in left if not looks_for_a_master(what)}
    assert not left, f"descriptors left open: {sorted(left)}"
