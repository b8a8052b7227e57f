"""``bench parked``: what many waiting gets cost, and how fast the first of them is answered.

In: how many, and for how long they idle. Out: CPU share, bytes for each, delivery latency.
Never: lets anything move while it looks at the idle cost.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from .figures import Goal, duration, machine, summary, table
from .workers import Workers

CPU_PERCENT = 1.0
NBYTES_EACH = 8192.0
FIRST_DELIVERY_US = 1000.0


def run(
    *, count: int = 10_000, seconds: float = 10.0, deliveries: int = 200, loop: str = "asyncio"
) -> dict[str, Any]:
    """Measure; see :func:`report`.

    Raises:
        WorkerFailed: a process ended or hung.
    """
    before = machine()
    with Workers() as workers:
        pair = workers.pair(
            {
                "program": "parked_worker",
                "loop": loop,
                "namespace": f"bench-parked-{os.getpid()}",
                "connector": "SharedMemoryConnector",
                "port": 0,
            }
        )
        sender, receiver = pair
        for worker in pair:
            worker.answer()

        def both(step: dict[str, Any], field: str) -> list[float]:
            for worker in pair:
                worker.ask(step)
            return [worker.answer()[field] for worker in pair]

        # A few first, so that what both sides need once is not counted.
        receiver.ask({"do": "park", "count": 10, "prefix": "first"})
        receiver.answer()
        receiver.ask({"do": "cancel"})
        receiver.answer()
        empty = both({"do": "resident"}, "resident")
        begun = time.perf_counter()
        receiver.ask({"do": "park", "count": count, "prefix": "k"})
        receiver.answer()
        parking = time.perf_counter() - begun
        both({"do": "idle", "seconds": 1.0}, "cpu")  # let the last words settle
        full = both({"do": "resident"}, "resident")
        cpu = both({"do": "idle", "seconds": seconds}, "cpu")
        keys = [
            f"k{index}" for index in random.Random(0).sample(range(count), min(count, deliveries))
        ]
        moments = []
        for key in keys:
            sender.ask({"do": "put", "key": key})
            moments.append(sender.answer()["begun"])
        receiver.ask({"do": "usable"})
        usable = receiver.answer()["usable"]
        latency = summary([usable[key] - moment for key, moment in zip(keys, moments, strict=True)])
        receiver.ask({"do": "cancel"})
        cancelling = receiver.answer()["nanoseconds"] / 1e9
    percent = [100 * share / seconds for share in cpu]
    each = [(after - first) / count for after, first in zip(full, empty, strict=True)]
    goals = [
        Goal(
            f"CPU of both processes with {count} gets waiting",
            "at most",
            CPU_PERCENT,
            sum(percent),
            "% of a core",
        ),
        Goal(
            "memory for each in both processes, with its task",
            "at most",
            NBYTES_EACH,
            sum(each),
            "bytes",
        ),
        Goal(
            "median time from put to delivery", "at most", FIRST_DELIVERY_US, latency.median, "us"
        ),
    ]
    return {
        "benchmark": "parked",
        "machine": before,
        "count": count,
        "loop": loop,
        "cpu_percent": {"sender": percent[0], "receiver": percent[1]},
        "bytes_each": {"sender": each[0], "receiver": each[1]},
        "parking_s": parking,
        "cancelling_s": cancelling,
        "delivery": latency.as_dict(),
        "goals": [goal.as_dict() for goal in goals],
    }


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    rows = [
        [
            name,
            f"{result['cpu_percent'][name]:.2f} %",
            f"{result['bytes_each'][name]:.0f} B",
        ]
        for name in ("sender", "receiver")
    ]
    delivery = result["delivery"]
    return "\n".join(
        [
            table(["", "of a core while idle", "memory for each get"], rows),
            "",
            f"put to delivery while the others wait: median {duration(delivery['median_us'])}, "
            f"p99 {duration(delivery['p99_us'])} of {delivery['count']}",
            f"to park all: {result['parking_s']:.2f} s; to cancel them: {result['cancelling_s']:.2f} s",
        ]
    )


def first_line(result: dict[str, Any]) -> str:
    return f"{result['count']} gets that wait for one sender, {result['loop']}"
