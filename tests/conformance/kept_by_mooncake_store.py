"""What Mooncake's store keeps for the life of its process: connections to its master and to other clients.

In: traces. Out: whether one is such a socket.
Never: takes anything else for one; a transport over a store has no TCP socket of its own.
"""

from __future__ import annotations

from pathlib import Path

from omni_async.testing.leaks import Trace


def kept(trace: Trace) -> bool:
    if trace.kind != "descriptor" or "socket:[" not in trace.name:
        return False
    inode = trace.name.rpartition("[")[2].rstrip("]")
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return any(row[9] == inode for row in rows)
