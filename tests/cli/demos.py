"""Demos as a user starts them: real processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

DEMO = [sys.executable, "-m", "omni_async.cli.main", "demo"]
AT_ONCE = 3.0
"""Seconds within which everything has to be gone."""


def demo(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *map(str, args)], capture_output=True, text=True, timeout=55)


@contextlib.contextmanager
def running(
    *args: str | Path, count: int = 4
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A demo whose processes are there, ``count`` of them, and those processes."""
    process = subprocess.Popen(
        [*DEMO, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        children: list[psutil.Process] = []
        deadline = time.monotonic() + 20
        while len(children) < count:  # nobody tells another process of its grandchildren
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
            children = psutil.Process(process.pid).children()
        yield process, children
    finally:
        process.kill()
        process.communicate()


def named(children: list[psutil.Process], role: str) -> psutil.Process:
    return next(child for child in children if child.cmdline()[-1].startswith(role))


def all_gone(children: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(children, timeout=AT_ONCE)[1]


def writing(output: Path) -> None:
    """Return once the last stage has begun to write: all stages are at work then."""
    deadline = time.monotonic() + 30
    while not list(output.glob(".demo-*/*.wav")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
