"""The world of :mod:`omni_async.testing.world.streams` as hypothesis state machines.

In: hypothesis's choice of steps. Out: the shortest story that breaks a promise.
Never: adds a promise or a step of its own; imports pytest.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from .machines import HEARD, NUMBER, Lines
from .world import KEYS, RECEIVERS, Network
from .world.streams import StreamWorld

WINDOW = st.sampled_from([1, 2, 3, 8])


class Streams(Lines[StreamWorld]):
    """Steps of a world; subclasses say which network."""

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

    @rule(name=st.sampled_from(RECEIVERS), how=st.sampled_from(["cut", "kill", "close", "restart"]))
    def disrupt(self, name: str, how: str) -> None:
        self.world.disrupt(name, how)


class OrderedStreams(Streams):
    """What a channel promises: words arrive in order, once, until the line ends."""


class DoublingStreams(Streams):
    """Words are doubled, and of one line overtake each other."""

    network = Network.DOUBLES | Network.SHUFFLES


class LosingStreams(Streams):
    """Words are lost besides."""

    network = Network.DOUBLES | Network.SHUFFLES | Network.LOSES
