"""Servers that conformance needs beside the usual ones: with little room.

In: a machine. Out: servers for a test session, and how little room they have.
Never: shares them with tests that fill them for good.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from omni_async.cli.servers.mooncake import MooncakeMaster

LEASE = 1.0
"""Seconds for which the master keeps what was looked at."""


@contextlib.contextmanager
def leased_master() -> Iterator[MooncakeMaster]:
    """A master of short leases: a test waits for their end."""
    master = MooncakeMaster(f"--default_kv_lease_ttl={LEASE * 1000:.0f}", segment=128 << 20)
    with master:
        yield master


@contextlib.contextmanager
def lent(master: MooncakeMaster, nbytes: int) -> Iterator[Mapping[str, Any]]:
    """Memory for a master by a process of its own; options of who lends nothing."""
    extra = {**master.extra("sender"), "segment": nbytes}
    command = [sys.executable, "-m", "tests.conformance.lender", json.dumps(extra)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "lent\n"
            yield {**extra, "segment": 0}
        finally:
            process.kill()
