"""Figures of ``bench streams``: rows, goals, and the table for people.

In: batches of each side in each mode. Out: medians over rounds, ratios, text.
Never: measures.

A figure of a row is the median over rounds of that figure in a round: one disturbed round does not make the
p99 of the whole run, on either side.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from .figures import Goal, duration, quantile, table


class Wanted(NamedTuple):
    """Against the peer in one mode, and by itself."""

    mode: str
    figure: str
    times: float
    """How many times better than the peer's."""
    limit: float | None = None
    unit: str = "us"


WANTED = (
    Wanted("paced-256", "p99_us", 15.0, 1000.0),
    Wanted("paced-2048", "p99_us", 60.0, 1500.0),
    Wanted("burst", "chunks_per_s", 10.0),
)
IDLE_PERCENT = 2.0


def row(side: str, mode: str, batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line: medians over the rounds."""

    def median(figures: Sequence[float]) -> float:
        return statistics.median(figures)

    counts = [len(batch["one_way"]) for batch in batches]
    return {
        "side": side,
        "mode": mode,
        "chunks": sum(counts),
        "p50_us": median([statistics.median(batch["one_way"]) / 1e3 for batch in batches]),
        "p99_us": median([quantile(batch["one_way"], 0.99) / 1e3 for batch in batches]),
        "max_us": max(max(batch["one_way"]) / 1e3 for batch in batches),
        "chunks_per_s": median([n / b["seconds"] for n, b in zip(counts, batches, strict=True)]),
        "idle_percent": {
            who: median([100 * batch["idle"][half] for batch in batches])
            for half, who in enumerate(("producer", "consumer"))
        },
        "cpu_us_per_chunk": {
            who: median([1e6 * b["cpu"][half] / n for n, b in zip(counts, batches, strict=True)])
            for half, who in enumerate(("producer", "consumer"))
        },
    }


def goals(
    rows: Sequence[dict[str, Any]], ours: str, peer: str, wanted_all: Sequence[Wanted] = WANTED
) -> list[Goal]:
    """What is wanted of ``ours``; against the peer only where it was measured."""
    found = {(row["side"], row["mode"]): row for row in rows}
    out = []
    for wanted in wanted_all:
        mine, its = found.get((ours, wanted.mode)), found.get((peer, wanted.mode))
        if mine is None:
            continue
        here = mine[wanted.figure]
        if its is not None:
            there = its[wanted.figure]
            if wanted.figure == "chunks_per_s":
                name, ratio = f"{wanted.mode}: chunks per second, times the peer's", here / there
            else:
                name, ratio = f"{wanted.mode}: p99 lower than the peer's", there / here
            out.append(Goal(name, "at least", wanted.times, ratio, "times"))
        if wanted.limit is not None:
            out.append(Goal(f"{wanted.mode}: p99", "at most", wanted.limit, here, "us"))
    idle = found.get((ours, "idle"))
    if idle is not None:
        for who, used in idle["idle_percent"].items():
            out.append(
                Goal(f"idle: CPU of the {who}", "at most", IDLE_PERCENT, used, "% of a core")
            )
    return out


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    header = [
        "mode and side", "p50", "p99", "worst", "chunks/s", "idle, producer", "idle, consumer",
        "CPU/chunk, producer", "consumer",
    ]  # fmt: skip
    cells = []
    for one in sorted(result["rows"], key=lambda one: list(_modes(result)).index(one["mode"])):
        idle, cpu = one["idle_percent"], one["cpu_us_per_chunk"]
        cells.append(
            [
                f"{one['mode']}: {one['side']}",
                duration(one["p50_us"]),
                duration(one["p99_us"]),
                duration(one["max_us"]),
                f"{one['chunks_per_s']:.0f}",
                f"{idle['producer']:.1f} %",
                f"{idle['consumer']:.1f} %",
                duration(cpu["producer"]),
                duration(cpu["consumer"]),
            ]
        )
    return table(header, cells)


def _modes(result: dict[str, Any]) -> dict[str, None]:
    return dict.fromkeys(one["mode"] for one in result["rows"])


def first_line(result: dict[str, Any]) -> str:
    """Who is compared, and how true to life the other one is."""
    if result["peer"]:
        return f"omni_async against {result['peer']}"
    return "omni_async alone: no wheel of the peer was given (--peer PATH), so there is no ratio"
