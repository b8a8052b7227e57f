"""A worker process of a benchmark: ``python -m omni_async.cli.bench.worker FD``.

In: a job on the control line. Out: what the job's program answers there.
Never: starts processes, prints.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import socket
import sys
from typing import Any

from .line import Line, LineClosed

PROGRAMS = (
    "sides.ours",
    "sides.bare",
    "sides.engine",
    "sides.kv",
    "sides.peer",
    "sides.stream_adapter",
    "sides.stream_ours",
    "sides.stream_peer",
    "ticker_worker",
    "parked_worker",
)
"""Modules of this package with a function ``work(line, friends, job)``, plain or a coroutine."""


def main(fd: int) -> None:
    line = Line(socket.socket(fileno=fd))
    job: dict[str, Any] = line.receive()
    if job["program"] not in PROGRAMS:
        raise ValueError(f"no program {job['program']!r}")
    if "core" in job:
        os.sched_setaffinity(0, {job["core"]})
    program: Any = importlib.import_module("." + job["program"], __package__)
    friends = [socket.socket(fileno=friend) for friend in job["friends"]]
    try:
        if inspect.iscoroutinefunction(program.work):
            _run(program.work(line, friends, job), job.get("loop", "asyncio"))
        else:
            program.work(line, friends, job)
    except LineClosed:  # the benchmark is over
        pass


def _run(coroutine: Any, loop: str) -> None:
    if loop == "uvloop":
        import uvloop

        uvloop.run(coroutine)
    else:
        asyncio.run(coroutine)


if __name__ == "__main__":
    main(int(sys.argv[1]))
