"""The rendezvous cores in a world that goes wrong in every way it can.

In: seeds, and hypothesis. Out: green, or the shortest story of a broken promise.
Never: sockets, clocks, event loops.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from omni_async.model import TransferKey, Verb
from omni_async.testing.machines import (
    DoublingRendezvous,
    OrderedRendezvous,
    ShufflingRendezvous,
)
from omni_async.testing.world import Network, Step, tell, walk

LOSSY = Network.DOUBLES | Network.LOSES
NETWORKS = [Network.ORDERED, LOSSY, LOSSY | Network.SHUFFLES]
VERBS = [Verb.MAP, Verb.WRITE, Verb.READ]
KEY = TransferKey("0", "1", "a")
OTHER = TransferKey("0", "2", "a")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("network", NETWORKS, ids=["ordered", "doubling", "shuffling"])
def test_random_walks(network: Network, verb: Verb) -> None:
    for seed in range(300):
        walk(network, verb, seed, 120)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("network", NETWORKS, ids=["ordered", "doubling", "shuffling"])
def test_many_random_walks(network: Network, verb: Verb) -> None:
    for seed in range(1000, 51_000):
        walk(network, verb, seed, 150)


def test_a_pull_that_comes_twice_writes_once() -> None:
    """The second would write into a landing slot that has been handed back."""
    story = [
        Step("put", put(KEY)),
        Step("want", want("A", KEY)),
        Step("settle", {}),
        Step("go_on", {"index": 0, "cancels": False, "heard": 0}),
        Step("disturb", {"index": 0, "which": 0, "how": 0}),
        Step("go_on", {"index": 0, "cancels": True, "heard": 1}),
        Step("end_write", {"index": 0, "fails": False, "heard": 8}),
    ]
    assert tell(LOSSY, Verb.WRITE, story) is None


def put(key: TransferKey) -> dict[str, object]:
    return {"key": key, "consumers": 1, "inline": False, "owner": "a", "heard": 0}


def want(name: str, key: TransferKey) -> dict[str, object]:
    return {"name": name, "key": key, "park": True, "heard": 0}


SHORT = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestOrdered = OrderedRendezvous.TestCase
TestDoubling = DoublingRendezvous.TestCase
TestShuffling = ShufflingRendezvous.TestCase
for case in (TestOrdered, TestDoubling, TestShuffling):
    case.settings = SHORT
