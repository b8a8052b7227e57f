"""Sockets by which a client of Mooncake's store looks for a master that a test has killed.

In: what a descriptor refers to. Out: whether it may be such a socket.
Never: takes a socket for one that listens, or that is connected to somebody.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ESTABLISHED, LISTENING = "01", "0A"
_TABLES = [Path("/proc/net") / table for table in ("tcp", "tcp6", "unix", "udp", "udp6")]


def looks_for_a_master(name: str) -> bool:
    """``name`` as the link in ``/proc/self/fd`` has it, or with words around it."""
    return bool(lookers([name]))


def lookers(names: Iterable[str]) -> set[str]:
    """Those of them that are such sockets."""
    sockets = [name for name in names if "socket:[" in name]
    if not sockets or "omni_async.backends.mooncake_store._native" not in sys.modules:
        return set()
    rows = [row.split() for table in _TABLES for row in table.read_text().splitlines()[1:]]
    busy = {
        word for row in rows if len(row) < 10 or row[3] in (ESTABLISHED, LISTENING) for word in row
    }
    return {name for name in sockets if name.rpartition("[")[2].partition("]")[0] not in busy}
