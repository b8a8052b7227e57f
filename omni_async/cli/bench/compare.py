"""One-way times of this library and of the peer, side by side in one run: ``bench shm``, ``bench nixl``.

In: a contest, sizes, rounds, the peer's wheel. Out: one-way times, ratios and goals.
Never: measures sides one after the other; a round asks each side, so noise hits all alike.

Each size has processes of its own: what the C library has kept of a larger payload would make the smaller ones of
whoever allocates for each message look cheaper than they are for who sends only these.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...model import Role
from ..free_ports import FreePorts
from ..on_this_host import check_here
from . import peer as peer_wheel
from .contest import MEMCPY, Contest, Side
from .figures import Goal, Summary, duration, machine, summary, table
from .payload import size_name
from .workers import Worker, Workers

Where = Callable[[Side], Mapping[Role, Mapping[str, Any]]]
"""What the two processes of a side are told, where they need more than a port."""

Series = dict[tuple[Side, int], dict[str, list[int]]]
"""Of each side and size: nanoseconds by what was timed."""


def count_for(nbytes: int, scale: float) -> int:
    """Iterations of one round; large payloads are slow, and their times scatter less."""
    base = (
        200 if nbytes <= 1 << 18 else 60 if nbytes <= 4 << 20 else 12 if nbytes <= 64 << 20 else 4
    )
    return max(2, round(base * scale))


def run(
    contest: Contest,
    sizes: Sequence[int],
    *,
    rounds: int = 5,
    scale: float = 1.0,
    peer: str | None = None,
    floor: bool = False,
    pin: bool = False,
    loops: Sequence[str] = ("asyncio", "uvloop"),
    where: Where | None = None,
) -> dict[str, Any]:
    """Measure; see :func:`report` for what the result says to people.

    Raises:
        BackendUnavailable: the connector cannot run here.
        PeerUnavailable: ``peer`` was given and is no usable wheel.
        WorkerFailed: a process ended, hung, or found wrong bytes.
    """
    asyncio.run(check_here(contest.connector))
    wheel = peer_wheel.find(peer) if peer else None
    sides = [
        side
        for side in (*contest.sides, *(contest.floor if floor else ()))
        if (wheel is not None if side.program == "sides.peer" else side.loop in loops)
    ]
    ours = next((side for side in sides if side.program == "sides.ours"), None)
    series: Series = {}
    memcpy: dict[int, list[int]] = {nbytes: [] for nbytes in sizes}
    before = machine()
    for nbytes in sizes:
        with FreePorts() as ports, Workers() as workers:
            pairs = _pairs(workers, sides, ports, contest, peer, pin, where)
            for number in range(rounds):
                for side in sides:
                    batch = _batch(side, nbytes, number, scale)
                    batch["memcpy"] = batch["count"] if side is ours else 0
                    measured = series.setdefault((side, nbytes), {})
                    _one(pairs[side.pair], batch, measured, memcpy)
    rows = [
        {
            "side": side.name,
            "nbytes": nbytes,
            **{what: summary(values).as_dict() for what, values in series[side, nbytes].items()},
        }
        for side in sides
        for nbytes in sizes
    ]
    copies = {nbytes: summary(values) for nbytes, values in memcpy.items() if values}
    times = {
        (side.name, nbytes): summary(series[side, nbytes]["one_way"])
        for side in sides
        for nbytes in sizes
    } | {(MEMCPY, nbytes): copy for nbytes, copy in copies.items()}
    return {
        "benchmark": contest.benchmark,
        "peer": wheel.title(contest.connector) if wheel else None,
        "machine": before,
        "rounds": rounds,
        "pinned": pin,
        "rows": rows,
        "memcpy": [{"nbytes": nbytes, **copy.as_dict()} for nbytes, copy in copies.items()],
        "ratios": [
            {
                "side": side.name,
                "nbytes": nbytes,
                "times_faster_than_peer": times[side.rival, nbytes].median
                / times[side.name, nbytes].median,
            }
            for side in sides
            for nbytes in sizes
            if (side.rival, nbytes) in times
        ],
        "goals": [goal.as_dict() for goal in _goals(contest, sides, sizes, times)],
    }


def _pairs(
    workers: Workers,
    sides: Sequence[Side],
    ports: FreePorts,
    contest: Contest,
    peer: str | None,
    pin: bool,
    where: Where | None,
) -> dict[tuple[str, str], tuple[Worker, Worker]]:
    """A producer and a consumer for all sides that share them, ready."""
    pairs: dict[tuple[str, str], tuple[Worker, Worker]] = {}
    for side in sides:
        if side.pair not in pairs:
            job = {
                "program": side.program,
                "loop": side.loop,
                "namespace": f"bench-{os.getpid()}-{side.loop}",
                "peer": peer,
                "connector": contest.connector,
                "port": ports.of(side.pair),
                **({"extra": where(side)} if where else {}),
            }
            pairs[side.pair] = workers.pair(job, pin=pin)
    for pair in pairs.values():
        for worker in pair:
            worker.answer()
    return pairs


def _batch(side: Side, nbytes: int, number: int, scale: float) -> dict[str, Any]:
    """What one side is asked for in one round."""
    count = count_for(nbytes, scale * side.share)
    return {
        "name": f"omni-bench-{os.getpid()}-{number}-{side.mode}-{nbytes}",
        "mode": side.mode,
        "nbytes": nbytes,
        "count": count,
        "warmup": max(2, count // 10),
    }


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


def _goals(
    contest: Contest,
    sides: Sequence[Side],
    sizes: Sequence[int],
    times: dict[tuple[str, int], Summary],
) -> list[Goal]:
    goals = []
    for nbytes in sizes:
        for wanted in contest.wanted:
            ours = _ours(sides, wanted.mode)
            other = times.get((wanted.against, nbytes))
            if wanted.nbytes != nbytes or ours is None or other is None:
                continue
            figures = (times[ours.name, nbytes], other)
            here, there = (each.best if wanted.best else each.median for each in figures)
            ratio = there / here if wanted.sense == "at least" else here / there
            name = f"{size_name(nbytes)} {wanted.what}"
            goals.append(Goal(name, wanted.sense, wanted.times, ratio, "times"))
    return goals


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    sizes = list(dict.fromkeys(row["nbytes"] for row in result["rows"]))
    header = ["one way, median / p99", *map(size_name, sizes)]
    names = list(dict.fromkeys(row["side"] for row in result["rows"]))
    cells = {
        (row["side"], row["nbytes"]): (
            f"{duration(row['one_way']['median_us'])} / {duration(row['one_way']['p99_us'])}"
        )
        for row in result["rows"]
    }
    rows = [[name, *(cells[name, nbytes] for nbytes in sizes)] for name in names]
    if result["memcpy"]:
        copies = (f"{duration(c['median_us'])} / {duration(c['p99_us'])}" for c in result["memcpy"])
        rows.append([MEMCPY, *copies])
    lines = [table(header, rows)]
    if result["peer"]:
        times = {
            (ratio["side"], ratio["nbytes"]): f"{ratio['times_faster_than_peer']:.1f}x"
            for ratio in result["ratios"]
        }
        rows = [
            [name, *(times[name, nbytes] for nbytes in sizes)]
            for name in names
            if (name, sizes[0]) in times
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
