"""``bench load``: how long reading and checking a deploy file takes.

In: how many stages, how often. Out: times in new processes, where nothing is warm, and in one that is.
Never: opens what the file names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from omni_async import load_deploy

from .figures import Goal, duration, machine, summary, table
from .workers import WorkerFailed

LOAD_MS = 50.0

_FRESH = """\
import sys, time
from omni_async import load_deploy
begun = time.perf_counter_ns()
load_deploy(sys.argv[1])
print(time.perf_counter_ns() - begun)
"""


def deploy_of(stages: int) -> dict[str, Any]:
    """A graph of stages: each sends to the next two, over two connectors, and one edge leads back."""
    connectors = {
        "near": {"name": "SharedMemoryConnector", "extra": {"codec_chunk_frames": 25}},
        "far": {"name": "MooncakeTransferEngineConnector", "extra": {"port_scheme": "strided"}},
    }
    items: list[dict[str, Any]] = [{"stage_id": id, "devices": str(id)} for id in range(stages)]
    for id, stage in enumerate(items[:-1]):
        alias = ("near", "far")[id % 2]
        ends = range(id + 1, min(id + 3, stages))
        stage["output_connectors"] = {f"to_stage_{end}": alias for end in ends}
    back = [{"from": stages - 1, "to": 0, "max_inflight": 1}] if stages > 1 else []
    return {"connectors": connectors, "stages": items, "edges": back}


def run(*, stages: int = 12, processes: int = 10, repeats: int = 100) -> dict[str, Any]:
    """Measure; see :func:`report`.

    Raises:
        WorkerFailed: a process ended with an error.
    """
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deploy.json"
        path.write_text(json.dumps(deploy_of(stages), indent=1))
        cold = [_in_a_new_process(path) for _ in range(processes)]
        warm = []
        for _ in range(repeats):
            begun = time.perf_counter_ns()
            load_deploy(path)
            warm.append(time.perf_counter_ns() - begun)
    fresh, again = summary(cold), summary(warm)
    name = f"median time to load {stages} stages for the first time in a process"
    goal = Goal(name, "at most", LOAD_MS, fresh.median / 1e3, "ms")
    return {
        "benchmark": "load",
        "machine": before,
        "stages": stages,
        "new_process": fresh.as_dict(),
        "again": again.as_dict(),
        "goals": [goal.as_dict()],
    }


def _in_a_new_process(path: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _FRESH, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WorkerFailed(f"loading {path.name} failed: {done.stderr.strip()[-500:]}")
    return int(done.stdout)


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    names = {"new_process": "for the first time in a process", "again": "again"}
    return table(
        ["load_deploy", "median", "p99", "worst"],
        [
            [words, *(duration(result[name][key]) for key in ("median_us", "p99_us", "max_us"))]
            for name, words in names.items()
        ],
    )


def first_line(result: dict[str, Any]) -> str:
    return f"a deploy file of {result['stages']} stages"
