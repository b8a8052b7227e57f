"""Sockets by which a client of Mooncake's store looks for a master that a test has killed.

In: what a descriptor refers to. Out: whether it may be such a socket.
Never: takes a socket for one that listens, or that is connected to somebody.
"""

from __future__ import annotations

import sys
from pathlib import Path

ESTABLISHED, LISTENING = "01", "0A"
_TABLES = [Path("/proc/net") / table for table in ("tcp", "tcp6", "unix", "udp", "udp6")]


def looks_for_a_master(name: str) -> bool:
    """``name`` as the link in ``/proc/self/fd`` has it, or with words around it."""
    if "socket:[" not in name or "omni_async.backends.mooncake_store._native" not in sys.modules:
        return False
    inode = name.rpartition("[")[2].partition("]")[0]
    rows = [row.split() for table in _TABLES for row in table.read_text().splitlines()[1:]]
    there = [row for row in rows if inode in row]
    return not any(len(row) < 10 or row[3] in (ESTABLISHED, LISTENING) for row in there)
