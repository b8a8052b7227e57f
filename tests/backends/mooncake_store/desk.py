"""A store with memory beside it, so that tests can speak in bytes.

In: names and bytes. Out: bytes.
Never: hides an error of the store.
"""

from __future__ import annotations

import math

from omni_async.abc import Gone, Piece, Store
from omni_async.pool.memory import AnonymousMemory

ROOM = 32 << 20


class Desk:
    """One call at a time."""

    def __init__(self, store: Store, room: int = ROOM) -> None:
        self.store = store
        self.block = AnonymousMemory().allocate(room)
        self.region = store.register(self.block.address, self.block.nbytes)

    async def put(self, name: str, data: bytes, pieces: int = 1) -> None:
        self.block.view(0, len(data))[:] = data
        await self.put_here(name, len(data), pieces)

    async def put_here(self, name: str, nbytes: int, pieces: int = 1) -> None:
        """Whatever lies in the memory."""
        starts = [nbytes * at // pieces for at in range(pieces)]
        parts = [
            Piece(self.block.address + start, end - start)
            for start, end in zip(starts, [*starts[1:], nbytes], strict=True)
        ]
        await self.store.put(name, parts, ttl=math.inf, timeout=10)

    async def size(self, name: str, room: int | None = None) -> int | None:
        """Read it into the memory; how long it is."""
        nbytes = self.block.nbytes if room is None else room
        return await self.store.get(name, self.block.address, nbytes, timeout=10)

    async def get(self, name: str) -> bytes | None:
        self.block.view(0, 64)[:] = bytes(64)
        size = await self.size(name)
        return None if size is None else bytes(self.block.view(0, size))

    async def delete(self, name: str, *, own: bool = False) -> Gone:
        return (await self.store.delete([name], own=own))[0]

    async def there(self, name: str) -> bool:
        return (await self.store.contains([name]))[0]
