"""Memory of the pool for callers, to be filled and then put.

In: a pool, a length. Out: a buffer over a slot, which goes back with its last view.
Never: hands out memory that somebody still has a view of.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from ..errors import UsageError
from ..pool import DropQueue, Hold, ManagedBuffer, Pool


async def buffer_of(
    pool: Pool, drops: DropQueue, nbytes: Any, limit: float | None
) -> ManagedBuffer:
    """A buffer of ``nbytes`` bytes, within ``limit`` seconds.

    Raises:
        UsageError: that is no length.
        PayloadTooLarge, PoolExhausted: as for the pool.

    Cancellation: safe.
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise UsageError(f"nbytes must be an int of at least 0, not {nbytes!r}")
    if not nbytes:
        return ManagedBuffer(np.empty(0, np.uint8))
    deadline = None if limit is None else asyncio.get_running_loop().time() + limit
    lease = await pool.lease(nbytes, deadline=deadline)
    return ManagedBuffer(np.asarray(Hold(lease.address, nbytes, lease.drop, drops, lease.keep)))
