"""The two halves of streams in a world that goes wrong in every way it can.

In: seeds, and hypothesis. Out: green, or the shortest story of a broken promise.
Never: sockets, clocks, event loops.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from omni_async.testing.stream_machines import (
    DoublingStreams,
    LosingStreams,
    OrderedStreams,
    Streams,
)
from omni_async.testing.world import Network
from omni_async.testing.world.stream_walk import walk_streams

UNRULY = Network.DOUBLES | Network.SHUFFLES
NETWORKS = pytest.mark.parametrize(
    "network",
    [Network.ORDERED, UNRULY, UNRULY | Network.LOSES],
    ids=["ordered", "unruly", "losing"],
)

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]
SHORT = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=QUIET
)
LONG = settings(
    max_examples=5_000, stateful_step_count=80, deadline=None, suppress_health_check=QUIET
)
MACHINES = pytest.mark.parametrize("machine", [OrderedStreams, DoublingStreams, LosingStreams])


@NETWORKS
def test_random_walks(network: Network) -> None:
    for seed in range(1_000):
        walk_streams(network, seed, 150)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@NETWORKS
def test_many_random_walks(network: Network) -> None:
    for seed in range(10_000, 110_000):
        walk_streams(network, seed, 150)


@MACHINES
def test_streams(machine: type[Streams]) -> None:
    run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@MACHINES
def test_many_streams(machine: type[Streams]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
