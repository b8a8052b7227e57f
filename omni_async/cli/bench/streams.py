"""Streams of this library and the peer's chunk adapter, side by side: ``bench streams``, ``bench mooncake``.

In: modes, rounds, the peer's wheel. Out: times from the producer's call to the usable tensor, rates, CPU.
Never: measures sides one after the other; a round asks each side for each mode, so noise hits all alike.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..free_ports import FreePorts
from . import peer as peer_wheel
from .figures import machine
from .peer_vendors import SHM
from .stream_figures import WANTED, Wanted, goals, row
from .workers import Worker, Workers


class Mode(NamedTuple):
    """One way to drive streams."""

    name: str
    streams: int
    chunks: int
    """Of each stream."""
    rate: float
    """Chunks per second over all streams; 0 is as fast as they are taken."""
    idle: float = 0.5
    """Seconds with all streams open and nothing sent."""
    more: int = 1
    """How many times as many chunks are sent where a producer waits for its consumer: it is far faster."""


MODES = {
    mode.name: mode
    for mode in (
        Mode("paced-256", 256, 8, 500),
        Mode("paced-2048", 2048, 2, 1000),
        Mode("burst", 256, 20, 0, more=10),
        Mode("idle", 2048, 1, 0, idle=5.0),
    )
}


class Side(NamedTuple):
    """One line of the table."""

    name: str
    program: str
    loop: str = "asyncio"
    meta: bool = True
    """Whether chunks are the peer's payload, a tensor and metadata, or the tensor alone."""
    queues: bool = False
    """Whether its producer hands over all it has, and what was not sent yet lies in memory."""

    @property
    def pair(self) -> tuple[str, str]:
        """Sides with the same pair share their two processes."""
        return self.program, self.loop


PEER = Side("peer", "sides.stream_peer", queues=True)
SIDES = (
    Side("ours, asyncio", "sides.stream_ours"),
    Side("ours, uvloop", "sides.stream_ours", "uvloop"),
    Side("ours, asyncio, bare tensors", "sides.stream_ours", meta=False),
    Side("adapter, asyncio", "sides.stream_adapter", queues=True),
    Side("adapter, uvloop", "sides.stream_adapter", "uvloop", queues=True),
    PEER,
)


def run(
    modes: Sequence[str] = tuple(MODES),
    *,
    rounds: int = 3,
    scale: float = 1.0,
    peer: str | None = None,
    loops: Sequence[str] = ("asyncio", "uvloop"),
    connector: str = SHM,
    wanted: Sequence[Wanted] = WANTED,
) -> dict[str, Any]:
    """Measure; see :func:`.stream_figures.report` for what the result says to people.

    Args:
        modes: names of :data:`MODES`.
        scale: factor on the number of streams and on the seconds of idling.
        connector: what both go over.
        wanted: goals.

    Raises:
        PeerUnavailable: ``peer`` was given and is no usable wheel.
        WorkerFailed: a process ended, hung, or found a wrong chunk.
    """
    wheel = peer_wheel.find(peer) if peer else None
    sides = [side for side in SIDES if (wheel if side is PEER else side.loop in loops)]
    before = machine()
    batches: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with FreePorts() as ports, Workers() as workers:
        pairs: dict[tuple[str, str], tuple[Worker, Worker]] = {}
        for side in sides:
            if side.pair not in pairs:
                namespace = f"bench-{side.program}-{os.getpid()}-{side.loop}"
                job: dict[str, Any] = {
                    "program": side.program,
                    "loop": side.loop,
                    "namespace": namespace,
                }
                job |= {"connector": connector, "port": ports.of(side.pair)}
                pairs[side.pair] = workers.pair({**job, "peer": peer})
        for pair in pairs.values():
            for worker in pair:
                worker.answer()
        for number in range(rounds):
            for name in modes:
                for side in sides:
                    batch = scaled(MODES[name], scale, side)._asdict()
                    batch |= {"name": f"bench-{os.getpid()}-{number}-{name}", "meta": side.meta}
                    measured = one(pairs[side.pair], batch)
                    batches.setdefault((side.name, name), []).append(measured)
    rows = [row(side, mode, series) for (side, mode), series in batches.items()]
    return {
        "benchmark": "streams",
        "peer": wheel.adapter_title(connector) if wheel else None,
        "machine": before,
        "rounds": rounds,
        "rows": rows,
        "goals": [goal.as_dict() for goal in goals(rows, sides[0].name, PEER.name, wanted)],
    }


def scaled(mode: Mode, scale: float, side: Side) -> Mode:
    return mode._replace(
        streams=max(2, round(mode.streams * scale)),
        idle=mode.idle * scale,
        chunks=mode.chunks * (1 if side.queues else mode.more),
    )


def one(pair: tuple[Worker, Worker], batch: dict[str, Any]) -> dict[str, Any]:
    """One batch: open, idle, send all, close; what both said."""
    producer, consumer = pair

    def both(step: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        consumer.ask(step)
        producer.ask(step)
        return producer.answer(), consumer.answer()

    both({"do": "open", **batch})
    both({"do": "idle", "seconds": 0.2})  # what opening has left behind
    idle = both({"do": "idle", "seconds": batch["idle"]})
    sent, got = both({"do": "run"})
    both({"do": "close"})
    return {
        "one_way": [end - start for start, end in zip(sent["begun"], got["usable"], strict=True)],
        "seconds": (max(got["usable"]) - sent["begun"][0]) / 1e9,
        "idle": [half["cpu"] / batch["idle"] for half in idle],
        "cpu": [sent["cpu"], got["cpu"]],
    }
