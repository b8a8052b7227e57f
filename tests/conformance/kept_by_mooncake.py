"""What Mooncake's engine keeps for the life of its process: its listening socket and connections to other engines.

In: traces. Out: whether one is such a socket.
Never: takes a line of words for one; those are at ports outside of the engine's range.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from omni_async.testing.leaks import Trace

FIRST = int(os.environ.get("MC_MIN_RPC_PORT", "15000"))
LAST = int(os.environ.get("MC_MAX_RPC_PORT", "17000"))


def kept(trace: Trace) -> bool:
    if trace.kind != "descriptor" or "socket:[" not in trace.name:
        return False
    inode = trace.name.rpartition("[")[2].rstrip("]")
    return any(FIRST <= port <= LAST for port in _ports(inode))


def _ports(inode: str) -> Iterator[int]:
    """Both ports of a TCP socket."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] == inode:
                yield from (int(end.rpartition(":")[2], 16) for end in fields[1:3])
