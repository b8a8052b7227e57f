"""Slots of registered memory: where frames lie while they travel.

In: sizes, and blocks from a memory source. Out: leases, and views that give them back.
Never: knows keys, peers or messages; frees memory under a live operation.
"""

from __future__ import annotations

from .allowance import checked_limit, memory_allowance
from .buffer import ManagedBuffer
from .hold import DropQueue, Hold
from .lease import Lease, LeaseError, State
from .memory import PAGE, AnonymousMemory, MemfdMemory, map_fd
from .pool import Pool

__all__ = [
    "PAGE",
    "AnonymousMemory",
    "DropQueue",
    "Hold",
    "Lease",
    "LeaseError",
    "ManagedBuffer",
    "MemfdMemory",
    "Pool",
    "State",
    "checked_limit",
    "map_fd",
    "memory_allowance",
]
