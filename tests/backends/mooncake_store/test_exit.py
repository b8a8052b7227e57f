"""The end of a process that has a client: its status, and what it wrote, are as without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from omni_async.cli.servers.mooncake import MooncakeMaster

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio, atexit, ctypes, json, os, sys
from tests.backends.mooncake_store.agent import opened

async def main():
    await (await opened(json.loads(sys.argv[1]))).close()

asyncio.run(main())
atexit.register(print, "Python's last words")
ctypes.CDLL(None).puts(b"words of C")
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("child = os.fork()\nif not child: sys.exit(4)\nsys.exit(os.waitpid(child, 0)[1] >> 8)", 4),
    ],
)
def test_status_and_words(mooncake_master: MooncakeMaster, end: str, status: int) -> None:
    extra = json.dumps({**mooncake_master.extra("sender"), "segment": 16 << 20})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end), extra],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
    )
    assert done.returncode == status, done.stderr
    assert "words of C" in done.stdout
    assert "Python's last words" in done.stdout
    assert ("ValueError" in done.stderr) == ("ValueError" in end)
