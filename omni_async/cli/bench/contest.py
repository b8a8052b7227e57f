"""Who is compared with whom over which connector, and what is wanted of it.

In: nothing. Out: contests by name.
Never: measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from .payload import SIZES

MEMCPY = "one warm memcpy"
"""Plain copies of the same bytes, which the producer of our first side makes beside its puts."""


class Side(NamedTuple):
    """One line of the table."""

    name: str
    program: str
    mode: str
    loop: str = "asyncio"
    rival: str = ""
    """The side whose times are divided by this one's."""
    share: float = 1.0
    """Of the usual number of iterations, where each takes long."""

    @property
    def pair(self) -> tuple[str, str]:
        """Sides with the same pair share their two processes."""
        return self.program, self.loop


class Wanted(NamedTuple):
    """A goal: our first side of a mode against another side or a plain copy, at one size."""

    nbytes: int
    mode: str
    sense: Literal["at least", "at most"]
    times: float
    against: str
    what: str
    best: bool = False
    """The best time of each instead of its median: what a neighbour on the machine does not spoil."""


class Contest(NamedTuple):
    """One benchmark of one-way times."""

    benchmark: str
    connector: str
    """The name that a deploy YAML has for it, which is the peer's class, too."""
    sides: tuple[Side, ...]
    floor: tuple[Side, ...]
    """Measured where it is asked for."""
    wanted: tuple[Wanted, ...]


PEER = "peer, metadata handed over"
PEER_TOLD = "peer, told when it is there"
PEER_WAITS = "peer, its get waits"
PEER_TENSOR = "peer, one tensor"
ENGINE = "the engine alone, one write"
WAITING = 0.1
"""Of the iterations, where a get waits first."""


def _faster(
    mode: str, what: str, times: Mapping[str, float], against: str = PEER
) -> tuple[Wanted, ...]:
    return tuple(
        Wanted(SIZES[size], mode, "at least", target, against, what)
        for size, target in times.items()
    )


def _first_delivery(times: float) -> tuple[Wanted, ...]:
    """To a get that has begun to wait 5 ms before the put."""
    return (Wanted(SIZES["4K"], "waits", "at least", times, PEER_WAITS, "sooner to a waiting get"),)


def _store(loop: str) -> tuple[Side, ...]:
    """How two processes that meet at a store are timed."""
    return (
        Side(f"ours, {loop}, told when it is there", "sides.ours", "told", loop, rival=PEER_TOLD),
        Side(f"ours, {loop}, get waits", "sides.ours", "waits", loop, PEER_WAITS, WAITING),
    )


def _near_the_engine(mode: str, times: float, what: str) -> tuple[Wanted, ...]:
    size = SIZES["186M"]
    return (
        Wanted(size, mode, "at most", times, ENGINE, f"{what}, medians"),
        Wanted(size, mode, "at most", times, ENGINE, f"{what}, best times", best=True),
    )


SHM = Contest(
    "shm",
    "SharedMemoryConnector",
    (
        Side("ours, asyncio", "sides.ours", "copy", rival=PEER),
        Side("ours, asyncio, built in place", "sides.ours", "place", rival=PEER),
        Side("ours, asyncio, tensor from empty()", "sides.ours", "empty", rival=PEER),
        Side("ours, uvloop", "sides.ours", "copy", "uvloop", rival=PEER),
        Side("ours, uvloop, built in place", "sides.ours", "place", "uvloop", rival=PEER),
        Side(PEER, "sides.peer", "handed"),
        Side("peer, polled every 1 ms", "sides.peer", "polled", rival=PEER),
    ),
    (
        Side("bare arena, one copy", "sides.bare", "copy", rival=PEER),
        Side("bare arena, in place", "sides.bare", "place", rival=PEER),
    ),
    (
        *_faster(
            "copy", "faster than the peer", {"4K": 3, "64K": 3, "1M": 12, "16M": 20, "186M": 28}
        ),
        *_faster("place", "faster than the peer, built in place", {"186M": 500}),
        Wanted(SIZES["186M"], "copy", "at most", 1.3, MEMCPY, "against one warm memcpy"),
    ),
)

MOONCAKE = Contest(
    "mooncake",
    "MooncakeTransferEngineConnector",
    (
        Side("ours, asyncio", "sides.ours", "copy", rival=PEER),
        Side("ours, asyncio, built in place", "sides.ours", "place", rival=PEER),
        Side("ours, asyncio, one tensor", "sides.ours", "tensor", rival=PEER_TENSOR),
        Side("ours, uvloop", "sides.ours", "copy", "uvloop", rival=PEER),
        Side(PEER, "sides.peer", "handed"),
        Side(PEER_TENSOR, "sides.peer", "tensor"),
        Side(ENGINE, "sides.engine", "watch"),
    ),
    (),
    (
        *_faster("copy", "faster than the peer", {"4K": 4, "1M": 3, "16M": 3, "186M": 4.5}),
        *_faster("tensor", "as fast as the peer, one tensor", {"186M": 1}, PEER_TENSOR),
        *_near_the_engine("copy", 1.3, "against the engine alone"),
        *_near_the_engine("place", 1.1, "built in place, against the engine alone"),
    ),
)

NIXL = Contest(
    "nixl",
    "NixlConnector",
    (
        Side("ours, asyncio", "sides.ours", "copy", rival=PEER),
        Side("ours, asyncio, built in place", "sides.ours", "place", rival=PEER),
        Side("ours, asyncio, one tensor", "sides.ours", "tensor", rival=PEER_TENSOR),
        Side("ours, uvloop", "sides.ours", "copy", "uvloop", rival=PEER),
        Side(PEER, "sides.peer", "handed"),
        Side(PEER_TENSOR, "sides.peer", "tensor"),
    ),
    (),
    (
        *_faster("copy", "faster than the peer", {**dict.fromkeys(SIZES, 1), "4K": 3}),
        *_faster("tensor", "as fast as the peer, one tensor", dict.fromkeys(SIZES, 1), PEER_TENSOR),
    ),
)

_STORE = (
    *_store("asyncio"),
    *_store("uvloop"),
    Side(PEER_TOLD, "sides.peer", "handed"),
    Side(PEER_WAITS, "sides.peer", "waits", share=WAITING),
)

MOONCAKE_STORE = Contest(
    "mooncake-store",
    "MooncakeStoreConnector",
    _STORE,
    (),
    (
        *_faster(
            "told", "faster than the peer", {"4K": 1.3, "1M": 2, "16M": 2.5, "186M": 3}, PEER_TOLD
        ),
        *_first_delivery(10),
    ),
)

YUANRONG = Contest(
    "yuanrong",
    "YuanrongConnector",
    _STORE,
    (),
    _faster("told", "faster than the peer", {"186M": 5}, PEER_TOLD),
)

STORES = {contest.benchmark: contest for contest in (MOONCAKE_STORE, YUANRONG)}
