"""What gets cost that wait at a store, and how soon one of them is answered: one alone, and one of very many.

In: a connector, options of both ends, how many. Out: CPU share, delivery latency.
Never: takes the time a payload spends in the store for something else: all is counted from the put's begin.

The store tells nobody that something was put, so the waiting process asks; its CPU share is measured from the moment
all wait, and while one after the other is delivered. Where the library keeps a client in a process of its own, that
one is counted, too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...model import Role
from .figures import Goal, Summary, duration, machine, summary, table
from .workers import Worker, Workers

ALONE_US = 2_000.0
AMONG_MANY_US = 25_000.0
CPU_PERCENT = 15.0
PAUSES = (0.005, 0.2)
"""Seconds between which a get waits before its put begins."""


def run(
    connector: str,
    extra: Callable[[Role], Mapping[str, Any]],
    *,
    count: int,
    seconds: float,
    deliveries: int,
    loop: str = "asyncio",
) -> dict[str, Any]:
    """Measure; see :func:`report`.

    Raises:
        WorkerFailed: a process ended or hung.
    """
    before = machine()
    chance = random.Random(0)
    with Workers() as workers:
        sender, receiver = pair = workers.pair(
            {
                "program": "parked_worker",
                "loop": loop,
                "namespace": f"bench-waiting-{os.getpid()}",
                "connector": connector,
                "extra": {"sender": extra("sender"), "receiver": extra("receiver")},
            }
        )
        for worker in pair:
            worker.answer()
        alone = []
        for number in range(-5, deliveries):  # the first ones are not counted
            _ask(receiver, {"do": "park", "count": 1, "prefix": f"one{number}-"})
            time.sleep(chance.uniform(*PAUSES))
            late = _delivered(sender, receiver, f"one{number}-0")
            if number >= 0:
                alone.append(late)
        _ask(receiver, {"do": "park", "count": count, "prefix": "k"})
        idle = _ask(receiver, {"do": "idle", "seconds": seconds})
        _ask(receiver, {"do": "count"})
        among = []
        for index in chance.sample(range(count), min(count, deliveries)):
            time.sleep(chance.uniform(*PAUSES))
            among.append(_delivered(sender, receiver, f"k{index}"))
        busy = _ask(receiver, {"do": "count"})
        _ask(receiver, {"do": "cancel"})
    percent = {
        "idle": 100 * idle["cpu"] / seconds,
        "delivering": 100 * busy["cpu"] / busy["seconds"],
    }
    return {
        "benchmark": "waiting",
        "machine": before,
        "count": count,
        "loop": loop,
        "cpu_percent": percent,
        "alone": summary(alone).as_dict(),
        "among": summary(among).as_dict(),
        "goals": [
            goal.as_dict() for goal in _goals(count, percent, summary(alone), summary(among))
        ],
    }


def _ask(worker: Worker, step: dict[str, Any]) -> dict[str, Any]:
    worker.ask(step)
    answer: dict[str, Any] = worker.answer()
    return answer


def _delivered(sender: Worker, receiver: Worker, key: str) -> int:
    """Nanoseconds from the begin of a put to the moment its value was there."""
    begun: int = _ask(sender, {"do": "put", "key": key})["begun"]
    usable: int = _ask(receiver, {"do": "usable"})["usable"][key]
    return usable - begun


def _goals(
    count: int, percent: Mapping[str, float], alone: Summary, among: Summary
) -> tuple[Goal, ...]:
    return (
        Goal(
            "median time from put to delivery, one get waits",
            "at most",
            ALONE_US,
            alone.median,
            "us",
        ),
        Goal(
            f"median time from put to delivery, {count} gets wait",
            "at most",
            AMONG_MANY_US,
            among.median,
            "us",
        ),
        *(
            Goal(
                f"CPU of the process in which {count} gets wait, {when}",
                "at most",
                CPU_PERCENT,
                share,
                "% of a core",
            )
            for when, share in percent.items()
        ),
    )


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    rows = [
        [name, *(duration(result[key][figure]) for figure in ("median_us", "p99_us", "max_us"))]
        for name, key in (("one get waits", "alone"), (f"{result['count']} gets wait", "among"))
    ]
    percent = result["cpu_percent"]
    return "\n".join(
        [
            table(["put to delivery", "median", "p99", "worst"], rows),
            "",
            f"CPU while {result['count']} gets wait: {percent['idle']:.1f} % of a core; "
            f"while one after the other is delivered: {percent['delivering']:.1f} %",
        ]
    )


def first_line(result: dict[str, Any]) -> str:
    return f"Gets that wait, {result['loop']}"
