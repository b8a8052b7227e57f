"""The world of :mod:`omni_async.testing.world` as hypothesis state machines.

In: hypothesis's choice of steps. Out: the shortest story that breaks a promise.
Never: adds a promise or a step of its own; imports pytest.

Three networks: ``Ordered`` delays words, cuts lines and loses processes, as channels may;
``Doubling`` doubles and loses words too; ``Shuffling`` also lets words of one line overtake each
other.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ..model import Verb
from .world import KEYS, RECEIVERS, STAGES, Network, World

NUMBER = st.integers(0, 99)
HEARD = st.sampled_from([8, 4, 2, 1, 0])
"""Words that arrive right after a step."""
VERBS = [Verb.MAP, Verb.WRITE, Verb.READ]


class AnyWorld(Protocol):
    """What a world with lines can do, whatever is said on them."""

    def connect(self, name: str) -> None: ...
    def talking(self) -> object: ...
    def hear(self, index: int, count: int) -> None: ...
    def disturb(self, index: int, which: int, how: int) -> None: ...
    def settle(self) -> None: ...
    def check(self) -> None: ...
    def end(self) -> None: ...


W = TypeVar("W", bound=AnyWorld)


class Lines(RuleBasedStateMachine, Generic[W]):
    """What every world has: lines that come, lag, lose and settle. Subclasses make the world."""

    network: ClassVar[Network] = Network.ORDERED
    world: W

    @rule(name=st.sampled_from(RECEIVERS))
    def connect(self, name: str) -> None:
        self.world.connect(name)

    @precondition(lambda self: self.world.talking())
    @rule(index=NUMBER, count=st.integers(1, 4))
    def hear(self, index: int, count: int) -> None:
        self.world.hear(index, count)

    @precondition(lambda self: self.network and self.world.talking())
    @rule(index=NUMBER, which=st.integers(0, 9), how=st.integers(0, 2))
    def disturb(self, index: int, which: int, how: int) -> None:
        self.world.disturb(index, which, how)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @invariant()
    def promises_hold(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.end()


class Rendezvous(Lines[World]):
    """Steps of a world; subclasses say which network."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.network, Verb.MAP, alone=True)

    @initialize(verb=st.sampled_from(VERBS), alone=st.booleans())
    def begin(self, verb: Verb, alone: bool) -> None:
        self.world = World(self.network, verb, alone=alone)

    @rule(
        stage=st.sampled_from(STAGES),
        key=st.sampled_from(KEYS),
        consumers=st.sampled_from([1, 1, 1, 2, 3]),
        inline=st.sampled_from([False, False, True]),
        owner=st.sampled_from(["a", "req"]),
        heard=HEARD,
    )
    def put(
        self, stage: str, key: str, consumers: int, inline: bool, owner: str, heard: int
    ) -> None:
        self.world.put(stage, key, consumers, inline, owner, heard)

    @rule(
        name=st.sampled_from(RECEIVERS),
        key=st.sampled_from(KEYS),
        park=st.sampled_from([True, True, False]),
        heard=HEARD,
    )
    def want(self, name: str, key: str, park: bool, heard: int) -> None:
        self.world.want(name, key, park, heard)

    @rule(index=NUMBER, cancels=st.sampled_from([False, False, True]), heard=HEARD)
    def go_on(self, index: int, cancels: bool, heard: int) -> None:
        self.world.go_on(index, cancels, heard)

    @rule(owner=st.sampled_from(["a", "req"]), seconds=st.sampled_from([0.0, 0.0, 150.0, 301.0]))
    def tidy(self, owner: str, seconds: float) -> None:
        self.world.tidy(owner, seconds)

    @precondition(lambda self: self.world.writing)
    @rule(index=NUMBER, fails=st.sampled_from([False, False, True]), heard=HEARD)
    def end_write(self, index: int, fails: bool, heard: int) -> None:
        self.world.end_write(index, fails, heard)

    @rule(name=st.sampled_from(RECEIVERS), how=st.sampled_from(["cut", "kill", "leave", "restart"]))
    def disrupt(self, name: str, how: str) -> None:
        self.world.disrupt(name, how)


class OrderedRendezvous(Rendezvous):
    """What a channel promises: words arrive in order, once, until the line ends."""


class DoublingRendezvous(Rendezvous):
    """Words are lost and doubled too."""

    network = Network.DOUBLES | Network.LOSES


class ShufflingRendezvous(Rendezvous):
    """Words of one line overtake each other besides."""

    network = Network.DOUBLES | Network.LOSES | Network.SHUFFLES
