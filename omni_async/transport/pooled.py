"""The pool of a transport, and memory of it for callers, to be filled and then put.

In: an engine or a store; a pool, a length. Out: its pool; a buffer over a slot, which goes back with its last view.
Never: hands out memory that somebody still has a view of.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from ..abc import Block, Engine, MemorySource, Store
from ..codec import register_buffer
from ..errors import UsageError
from ..model import Region
from ..pool import DropQueue, Hold, ManagedBuffer, Pool

register_buffer(ManagedBuffer)

SEGMENT = 64 << 20
"""Bytes that are registered at a time, where registering pins."""


def pool_of(mover: Engine | Store, source: MemorySource, limit: int, **options: Any) -> Pool:
    """A pool whose memory ``mover`` knows; ``options`` as for :class:`Pool`."""

    def register(block: Block) -> Region:
        return mover.register(block.address, block.nbytes, fd=block.fd)

    return Pool(
        limit=limit,
        # Without pinning it is one segment, whose pages come only when they are touched. Where what is
        # registered is pinned: small segments, and no page behind its back.
        segment_nbytes=SEGMENT if mover.pins else limit,
        discard=not mover.pins,
        source=source,
        register=register,
        unregister=mover.unregister,
        **options,
    )


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
