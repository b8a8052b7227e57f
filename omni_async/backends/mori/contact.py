"""Contact: one peer's engine, and the threads that wait for what is written to it.

In: what the peer told of its engine and of its memory. Out: writes that have ended.
Never: lets one peer's silence keep another's writes waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ..._aio.executor import OwnedExecutor
from ...errors import ProtocolError
from ...model import Region
from ._native import Batch, Native, read_engine, read_memory

LANES = 8
"""Writes to one peer that are waited for at once; each takes a thread, and the vendor's call blocks in it."""


class Target(msgspec.Struct, frozen=True):
    """A peer's region, as the vendor describes it."""

    id: int
    memory: object


def read_target(peer: str, region: Region, *, on_device: bool) -> Target:
    """A region that a peer told.

    Args:
        on_device: it has to be memory of a GPU.

    Raises:
        ProtocolError: there can be no such region, or its descriptor is of another one.
    """
    memory = read_memory(region.descriptor)
    if memory is None:
        raise ProtocolError(f"a region is told as {region.descriptor[:80]!r}", peer=peer)
    told = (memory.data, memory.size)
    if told != (region.address, region.nbytes) or region.nbytes <= 0:
        raise ProtocolError(
            f"a region of {region.nbytes} bytes at {region.address:#x} is described as {told[1]} bytes at "
            f"{told[0]:#x}",
            peer=peer,
        )
    if on_device and memory.loc.name != "GPU":
        raise ProtocolError("a region is memory of the host, which xgmi does not reach", peer=peer)
    return Target(region.id, memory)


class Contact:
    """One incarnation of one peer.

    Raises:
        ProtocolError: it told nonsense of its engine.
    """

    def __init__(self, word: bytes) -> None:
        engine = read_engine(word)
        if engine is None or not engine.key:
            raise ProtocolError(f"the peer's engine is told as {word[:80]!r}")
        self.word = word
        self.name: str = engine.key
        self._executor = OwnedExecutor("mori-write", LANES)

    def write(self, native: Native, batches: Sequence[Batch]) -> asyncio.Future[None]:
        """Done when all bytes are in place; see :meth:`Native.write`.

        Raises:
            ClosedError: the peer has gone.
        """
        return self._executor.run(native.write, self.word, batches)

    def close(self) -> None:
        """Begin no more writes; those that have begun go on to their end."""
        self._executor.close()
