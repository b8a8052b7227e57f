"""``bench ticker``: how late an event loop gets while large payloads move in both directions, and gets wait.

In: a size, seconds and rounds; a connector. Out: gaps of a 1 ms ticker on each loop, alone and under traffic.
Never: compares phases of different runs; quiet and busy ones alternate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ...model import Role
from .figures import Goal, machine, quantile, table
from .payload import SIZES, size_name
from .peer_vendors import SHM
from .workers import Workers

EXTRA_GAP_MS = 10.0
"""By how much the 99.9th percentile of the gaps may grow under traffic."""
IN_FLIGHT = 4
"""Payloads the pool has room for: a sender this far ahead waits."""


def run(
    *,
    nbytes: int = SIZES["186M"],
    seconds: float = 3.0,
    rounds: int = 4,
    loops: tuple[str, ...] = ("asyncio", "uvloop"),
    connector: str = SHM,
    extra: Callable[[Role], Mapping[str, Any]] = lambda role: {},
    in_flight: int = IN_FLIGHT,
    waiting: int = 0,
) -> dict[str, Any]:
    """Measure each loop in turn; see :func:`report`.

    Args:
        extra: options of a role's end, beside the pool's size.
        in_flight: payloads that a pool has room for.
        waiting: gets that wait for what nobody puts while payloads move.

    Raises:
        WorkerFailed: a process ended or hung.
    """
    before = machine()
    rows, goals = [], []
    pool = {"memory_pool_size": in_flight * (nbytes + (1 << 20))}
    roles: tuple[Role, ...] = ("sender", "receiver")
    job = {
        "nbytes": nbytes,
        "connector": connector,
        "extra": {role: {**extra(role), **pool} for role in roles},
        "waiting": waiting,
    }
    for loop in loops:
        for stage, phases in enumerate(_gaps(job, seconds, rounds, loop)):
            figures = {name: _figures(phases[name]) for name in ("alone", "traffic")}
            above = figures["traffic"]["p999_ms"] - figures["alone"]["p999_ms"]
            moved = phases["bytes"] / (rounds * seconds) / 1e9
            rows.append(
                {
                    "loop": loop,
                    "stage": stage,
                    **figures,
                    "extra_p999_ms": above,
                    "received_gb_s": moved,
                }
            )
            name = f"99.9th percentile gap above that of the ticker alone, {loop}, process {stage}"
            goals.append(Goal(name, "at most", EXTRA_GAP_MS, above, "ms"))
    return {
        "benchmark": "ticker",
        "machine": before,
        "nbytes": nbytes,
        "waiting": waiting,
        "rows": rows,
        "goals": [goal.as_dict() for goal in goals],
    }


def _gaps(job: dict[str, Any], seconds: float, rounds: int, loop: str) -> list[dict[str, Any]]:
    series: list[dict[str, Any]] = [{"alone": [], "traffic": [], "bytes": 0} for _ in range(2)]
    with Workers() as workers:
        pair = workers.pair(
            {
                **job,
                "program": "ticker_worker",
                "loop": loop,
                "namespace": f"bench-ticker-{os.getpid()}-{loop}",
            }
        )
        for worker in pair:
            worker.answer()
        # The first traffic meets fresh pages; it is not counted.
        for number in range(-1, rounds):
            for name in ("alone", "traffic"):
                phase = {
                    "name": f"{name}{number}",
                    "traffic": name == "traffic",
                    "seconds": seconds if number >= 0 else min(seconds, 1.0),
                }
                for worker in pair:
                    worker.ask(phase)
                answers = [worker.answer() for worker in pair]
                if number < 0:
                    continue
                for own, answer in zip(series, answers, strict=True):
                    own[name] += answer["gaps"]
                    own["bytes"] += answer["received"] * job["nbytes"]
    return series


def _figures(gaps: list[int]) -> dict[str, float]:
    return {
        "median_ms": quantile(gaps, 0.5) / 1e6,
        "p99_ms": quantile(gaps, 0.99) / 1e6,
        "p999_ms": quantile(gaps, 0.999) / 1e6,
        "max_ms": max(gaps) / 1e6,
        "ticks": len(gaps),
    }


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    header = ["gap between ticks of 1 ms", "median", "p99", "p99.9", "worst", "received"]
    rows = []
    for row in result["rows"]:
        for name in ("alone", "traffic"):
            figures = row[name]
            rows.append(
                [
                    f"{row['loop']}, process {row['stage']}, {name}",
                    *(
                        f"{figures[key]:.2f} ms"
                        for key in ("median_ms", "p99_ms", "p999_ms", "max_ms")
                    ),
                    f"{row['received_gb_s']:.2f} GB/s" if name == "traffic" else "",
                ]
            )
    return table(header, rows)


def first_line(result: dict[str, Any]) -> str:
    waiting = f" and {result['waiting']} gets wait in each" if result["waiting"] else ""
    return (
        f"A 1 ms ticker on the event loops of two processes, alone and while payloads of "
        f"{size_name(result['nbytes'])} move in both directions{waiting}"
    )
