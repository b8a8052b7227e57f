"""What was measured, as numbers and as a table.

In: nanoseconds. Out: summaries, goals, text for people.
Never: measures, decides what to measure.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple


class Summary(NamedTuple):
    """Of one series, in microseconds."""

    median: float
    p99: float
    best: float
    worst: float
    number: int

    def as_dict(self) -> dict[str, float]:
        return {
            "median_us": self.median,
            "p99_us": self.p99,
            "min_us": self.best,
            "max_us": self.worst,
            "count": self.number,
        }


def quantile(series: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the series does not exceed."""
    ordered = sorted(series)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(nanoseconds: Sequence[int]) -> Summary:
    return Summary(
        statistics.median(nanoseconds) / 1e3,
        quantile(nanoseconds, 0.99) / 1e3,
        min(nanoseconds) / 1e3,
        max(nanoseconds) / 1e3,
        len(nanoseconds),
    )


def duration(us: float) -> str:
    """Microseconds as a person reads them."""
    if us < 100:
        return f"{us:.1f} us"
    if us < 1000:
        return f"{us:.0f} us"
    ms = us / 1e3
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"


class Goal(NamedTuple):
    """What is wanted, and what came out."""

    name: str
    sense: Literal["at least", "at most"]
    target: float
    measured: float
    unit: str

    @property
    def met(self) -> bool:
        return (
            self.measured >= self.target
            if self.sense == "at least"
            else self.measured <= self.target
        )

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "met": self.met}

    def __str__(self) -> str:
        word = "met   " if self.met else "MISSED"
        return (
            f"{word}  {self.name}: {self.measured:.4g} {self.unit} "
            f"({self.sense} {self.target:g} {self.unit})"
        ).replace(" )", ")")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def machine() -> dict[str, Any]:
    """Where the run took place: facts that explain figures."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
