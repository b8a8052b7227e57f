"""The rendezvous cores in a world that goes wrong in every way it can.

In: seeds, and hypothesis. Out: green, or the shortest story of a broken promise.
Never: sockets, clocks, event loops.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from omni_async.model import TransferKey, Verb
from omni_async.rendezvous.messages import Want
from omni_async.rendezvous.payload import Payload
from omni_async.rendezvous.sender import Sender
from omni_async.testing.machines import (
    DoublingRendezvous,
    OrderedRendezvous,
    ShufflingRendezvous,
)
from omni_async.testing.world import Network, Step, tell, walk

LOSSY = Network.DOUBLES | Network.LOSES
NETWORKS = [Network.ORDERED, LOSSY, LOSSY | Network.SHUFFLES]
VERBS = [Verb.MAP, Verb.WRITE, Verb.READ]


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
    for seed in range(1000, 11_000):
        walk(network, verb, seed, 150)


def test_a_pull_that_comes_twice_writes_once() -> None:
    """The second would write into a landing slot that has been handed back."""
    story = [
        Step("put", put("a")),
        Step("want", want("A", "a")),
        Step("settle", {}),
        Step("go_on", {"index": 0, "cancels": False, "heard": 0}),
        Step("disturb", {"index": 0, "which": 0, "how": 0}),
        Step("go_on", {"index": 0, "cancels": True, "heard": 1}),
        Step("end_write", {"index": 0, "fails": False, "heard": 8}),
    ]
    assert tell(LOSSY, Verb.WRITE, story, alone=False) is None


def test_an_offer_made_ahead_that_comes_twice_is_used_once() -> None:
    """The second must not make the receiver give back what a get may take from the first."""
    story = [
        Step("put", put("a")),
        Step("disturb", {"index": 0, "which": 0, "how": 0}),
        Step("hear", {"index": 0, "count": 4}),
        Step("hear", {"index": 0, "count": 4}),
        Step("want", want("A", "a")),
        Step("tidy", {"owner": "a", "seconds": 0.0}),
        Step("settle", {}),
    ]
    assert tell(LOSSY, Verb.MAP, story, alone=True) is None


def test_an_offer_overtaken_by_its_recall_that_comes_twice() -> None:
    """It was given back at its first coming, so the second must not be kept for a get."""
    story = [
        Step("put", put("a")),
        Step("disturb", {"index": 0, "which": 0, "how": 0}),
        Step("put", put("a") | {"consumers": 2}),
        Step("disturb", {"index": 0, "which": 2, "how": 2}),
        Step("hear", {"index": 0, "count": 1}),
        Step("settle", {}),
        Step("want", want("A", "a")),
        Step("settle", {}),
    ]
    assert tell(LOSSY | Network.SHUFFLES, Verb.MAP, story, alone=True) is None


def test_a_receiver_that_dies_while_it_asks_about_offers_made_ahead() -> None:
    sender = Sender(300.0)
    sender.peer_opened(1, "1")
    for number in range(1, 9):
        key = TransferKey("0", "1", f"k{number}")
        sender.put(key, Payload(1, [1], places=[], apart=[], inline=b"x"), "owner", 1, 0.0)
        sender.receive(1, Want(number, *key, park=False))
    sender.cleanup("owner")
    sender.peer_ended(1, proven=True)
    assert (sender.parked, sender.directory.claimed, len(sender.directory)) == (0, 0, 0)


def put(key: str) -> dict[str, object]:
    return {"stage": "1", "key": key, "consumers": 1, "inline": False, "owner": "a", "heard": 0}


def want(name: str, key: str) -> dict[str, object]:
    return {"name": name, "key": key, "park": True, "heard": 0}


SHORT = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestOrdered = OrderedRendezvous.TestCase
TestOrdered.settings = SHORT
TestDoubling = DoublingRendezvous.TestCase
TestDoubling.settings = SHORT
TestShuffling = ShufflingRendezvous.TestCase
TestShuffling.settings = SHORT
