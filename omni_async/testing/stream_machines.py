"""The world of :mod:`omni_async.testing.world.streams` as hypothesis state machines.

In: hypothesis's choice of steps. Out: the shortest story that breaks a promise.
Never: adds a promise or a step of its own; imports pytest.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .machines import HEARD, NUMBER
from .world import KEYS, RECEIVERS, Network
from .world.streams import StreamWorld

WINDOW = st.sampled_from([1, 2, 3, 8])


class Streams(RuleBasedStateMachine):
    """Steps of a world; subclasses say which network."""

    network: ClassVar[Network] = Network.ORDERED

    def __init__(self) -> None:
        super().__init__()
        self.world = StreamWorld(self.network)

    @rule(key=st.sampled_from(KEYS), window=WINDOW, heard=HEARD)
    def open_writer(self, key: str, window: int, heard: int) -> None:
        self.world.open_writer(key, window, heard)

    @rule(name=st.sampled_from(RECEIVERS), key=st.sampled_from(KEYS), window=WINDOW, heard=HEARD)
    def open_reader(self, name: str, key: str, window: int, heard: int) -> None:
        self.world.open_reader(name, key, window, heard)

    @rule(index=NUMBER, filed=st.booleans(), heard=HEARD)
    def send(self, index: int, filed: bool, heard: int) -> None:
        self.world.send(index, filed, heard)

    @rule(index=NUMBER, heard=HEARD)
    def segment(self, index: int, heard: int) -> None:
        self.world.segment(index, heard)

    @rule(index=NUMBER, reason=st.sampled_from([None, None, "boom"]), heard=HEARD)
    def end_writer(self, index: int, reason: str | None, heard: int) -> None:
        self.world.end_writer(index, reason, heard)

    @rule(index=NUMBER, heard=HEARD)
    def read(self, index: int, heard: int) -> None:
        self.world.read(index, heard)

    @rule(index=NUMBER, heard=HEARD)
    def fetch_ahead(self, index: int, heard: int) -> None:
        self.world.fetch_ahead(index, heard)

    @rule(index=NUMBER, more=st.integers(1, 4), heard=HEARD)
    def widen(self, index: int, more: int, heard: int) -> None:
        self.world.widen(index, more, heard)

    @rule(index=NUMBER, heard=HEARD)
    def leave(self, index: int, heard: int) -> None:
        self.world.leave(index, heard)

    @rule(key=st.sampled_from(KEYS), seconds=st.sampled_from([0.0, 150.0, 301.0]), heard=HEARD)
    def tidy(self, key: str, seconds: float, heard: int) -> None:
        self.world.tidy(key, seconds, heard)

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

    @rule(name=st.sampled_from(RECEIVERS), how=st.sampled_from(["cut", "kill", "close", "restart"]))
    def disrupt(self, name: str, how: str) -> None:
        self.world.disrupt(name, how)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @invariant()
    def promises_hold(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.end()


class OrderedStreams(Streams):
    """What a channel promises: words arrive in order, once, until the line ends."""


class DoublingStreams(Streams):
    """Words are doubled, and of one line overtake each other."""

    network = Network.DOUBLES | Network.SHUFFLES


class LosingStreams(Streams):
    """Words are lost besides."""

    network = Network.DOUBLES | Network.SHUFFLES | Network.LOSES
