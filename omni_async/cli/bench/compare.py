"""``bench shm``: this library and the peer's shared-memory connector, side by side in one run.

In: sizes, rounds, the peer's wheel. Out: one-way times, ratios and goals.
Never: measures sides one after the other; a round asks each side for each size, so noise hits all alike.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import peer as peer_wheel
from .figures import Goal, duration, machine, summary, table
from .payload import SIZES, size_name
from .workers import Worker, Workers

FASTER = {
    SIZES["4K"]: 3.0,
    SIZES["64K"]: 3.0,
    SIZES["1M"]: 12.0,
    SIZES["16M"]: 20.0,
    SIZES["186M"]: 28.0,
}
"""How many times faster than the peer a value is to be, by its size."""
IN_PLACE_FASTER = {SIZES["186M"]: 500.0}
"""The same for a value built in place."""
OVER_MEMCPY = {SIZES["186M"]: 1.3}
"""How many times as long as one warm copy of the same bytes a value may take."""


class Side(NamedTuple):
    """One line of the table."""

    name: str
    program: str
    mode: str
    loop: str = "asyncio"

    @property
    def pair(self) -> tuple[str, str]:
        """Sides with the same pair share their two processes."""
        return self.program, self.loop


OURS = Side("ours, asyncio", "sides.ours", "copy")
IN_PLACE = Side("ours, asyncio, built in place", "sides.ours", "place")
HANDED = Side("peer, metadata handed over", "sides.peer", "handed")
SIDES = (
    OURS,
    IN_PLACE,
    Side("ours, asyncio, tensor from empty()", "sides.ours", "empty"),
    Side("ours, uvloop", "sides.ours", "copy", "uvloop"),
    Side("ours, uvloop, built in place", "sides.ours", "place", "uvloop"),
    HANDED,
    Side("peer, polled every 1 ms", "sides.peer", "polled"),
)
FLOOR = (
    Side("bare arena, one copy", "sides.bare", "copy"),
    Side("bare arena, in place", "sides.bare", "place"),
)


def count_for(nbytes: int, scale: float) -> int:
    """Iterations of one round; large payloads are slow, and their times scatter less."""
    base = (
        200 if nbytes <= 1 << 18 else 60 if nbytes <= 4 << 20 else 12 if nbytes <= 64 << 20 else 4
    )
    return max(2, round(base * scale))


def run(
    sizes: Sequence[int],
    *,
    rounds: int = 5,
    scale: float = 1.0,
    peer: str | None = None,
    floor: bool = False,
    pin: bool = False,
    loops: Sequence[str] = ("asyncio", "uvloop"),
) -> dict[str, Any]:
    """Measure; see :func:`report` for what the result says to people.

    Raises:
        PeerUnavailable: ``peer`` was given and is no usable wheel.
        WorkerFailed: a process ended, hung, or found wrong bytes.
    """
    wheel = peer_wheel.find(peer) if peer else None
    sides = [
        side
        for side in (*SIDES, *(FLOOR if floor else ()))
        if (wheel is not None if side.program == "sides.peer" else side.loop in loops)
    ]
    ours = _ours(sides, "copy")
    series: dict[tuple[Side, int], dict[str, list[int]]] = {}
    memcpy: dict[int, list[int]] = {nbytes: [] for nbytes in sizes}
    before = machine()
    with Workers() as workers:
        pairs: dict[tuple[str, str], tuple[Worker, Worker]] = {}
        for side in sides:
            if side.pair not in pairs:
                pairs[side.pair] = workers.pair(
                    {
                        "program": side.program,
                        "loop": side.loop,
                        "namespace": f"bench-{os.getpid()}-{side.loop}",
                        "peer": peer,
                    },
                    pin=pin,
                )
        for pair in pairs.values():
            for worker in pair:
                worker.answer()
        for number in range(rounds):
            for nbytes in sizes:
                for side in sides:
                    count = count_for(nbytes, scale)
                    batch = {
                        "name": f"omni-bench-{os.getpid()}-{number}-{side.mode}-{nbytes}",
                        "mode": side.mode,
                        "nbytes": nbytes,
                        "count": count,
                        "warmup": max(2, count // 10),
                        "memcpy": count if side is ours else 0,
                    }
                    _one(pairs[side.pair], batch, series.setdefault((side, nbytes), {}), memcpy)
    return _result(sides, sizes, series, memcpy, wheel, before, rounds, pin)


def _ours(sides: Sequence[Side], mode: str) -> Side | None:
    """The side that goals speak of: the first of this library in that mode."""
    return next((side for side in sides if (side.program, side.mode) == ("sides.ours", mode)), None)


def _one(
    pair: tuple[Worker, Worker],
    batch: dict[str, Any],
    series: dict[str, list[int]],
    memcpy: dict[int, list[int]],
) -> None:
    producer, consumer = pair
    consumer.ask(batch)
    producer.ask(batch)
    sent, got = producer.answer(), consumer.answer()
    skip = batch["warmup"]
    one_way = [end - start for start, end in zip(sent["begun"], got["usable"], strict=True)][skip:]
    touched = [way + more for way, more in zip(one_way, got["touch"][skip:], strict=True)]
    for name, values in (("one_way", one_way), ("put", sent["put"][skip:]), ("touched", touched)):
        series.setdefault(name, []).extend(values)
    memcpy[batch["nbytes"]] += sent.get("memcpy", [])


def _result(
    sides: Sequence[Side],
    sizes: Sequence[int],
    series: dict[tuple[Side, int], dict[str, list[int]]],
    memcpy: dict[int, list[int]],
    wheel: peer_wheel.Peer | None,
    before: dict[str, Any],
    rounds: int,
    pin: bool,
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "side": side.name,
            "nbytes": nbytes,
            **{what: summary(values).as_dict() for what, values in series[side, nbytes].items()},
        }
        for side in sides
        for nbytes in sizes
    ]
    medians = {(row["side"], row["nbytes"]): row["one_way"]["median_us"] for row in rows}
    copies = {nbytes: summary(values) for nbytes, values in memcpy.items()}
    goals = []
    for nbytes in sizes:
        for side, wanted, what in (
            (_ours(sides, "copy"), FASTER, "faster than the peer"),
            (_ours(sides, "place"), IN_PLACE_FASTER, "faster than the peer, built in place"),
        ):
            if wheel and side and nbytes in wanted:
                ratio = medians[HANDED.name, nbytes] / medians[side.name, nbytes]
                goals.append(
                    Goal(f"{size_name(nbytes)} {what}", "at least", wanted[nbytes], ratio, "times")
                )
        ours = _ours(sides, "copy")
        if ours and nbytes in OVER_MEMCPY:
            ratio = medians[ours.name, nbytes] / copies[nbytes].median
            name = f"{size_name(nbytes)} against one warm memcpy"
            goals.append(Goal(name, "at most", OVER_MEMCPY[nbytes], ratio, "times"))
    return {
        "benchmark": "shm",
        "peer": wheel.title if wheel else None,
        "machine": before,
        "rounds": rounds,
        "pinned": pin,
        "rows": rows,
        "memcpy": [{"nbytes": nbytes, **copies[nbytes].as_dict()} for nbytes in sizes],
        "ratios": [
            {
                "side": side.name,
                "nbytes": nbytes,
                "times_faster_than_peer": medians[HANDED.name, nbytes] / medians[side.name, nbytes],
            }
            for side in sides
            if wheel and side is not HANDED
            for nbytes in sizes
        ],
        "goals": [goal.as_dict() for goal in goals],
    }


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    sizes = [copy["nbytes"] for copy in result["memcpy"]]
    header = ["one way, median / p99", *map(size_name, sizes)]
    names = list(dict.fromkeys(row["side"] for row in result["rows"]))
    cells = {
        (row["side"], row["nbytes"]): (
            f"{duration(row['one_way']['median_us'])} / {duration(row['one_way']['p99_us'])}"
        )
        for row in result["rows"]
    }
    rows = [[name, *(cells[name, nbytes] for nbytes in sizes)] for name in names]
    rows.append(
        [
            "one warm memcpy",
            *(
                f"{duration(copy['median_us'])} / {duration(copy['p99_us'])}"
                for copy in result["memcpy"]
            ),
        ]
    )
    lines = [table(header, rows)]
    if result["peer"]:
        times = {
            (ratio["side"], ratio["nbytes"]): f"{ratio['times_faster_than_peer']:.1f}x"
            for ratio in result["ratios"]
        }
        rows = [
            [name, *(times[name, nbytes] for nbytes in sizes)]
            for name in names
            if name != HANDED.name
        ]
        lines += [
            "",
            table(["times faster than the peer with metadata", *map(size_name, sizes)], rows),
        ]
    return "\n".join(lines)


def first_line(result: dict[str, Any]) -> str:
    """Who is compared, and how true to life the other one is."""
    if result["peer"]:
        return f"omni_async against {result['peer']}"
    return "omni_async alone: no wheel of the peer was given (--peer PATH), so there is no ratio"
