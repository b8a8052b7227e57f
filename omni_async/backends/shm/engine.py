"""MAP: the receiver maps the sender's memory.

In: regions with descriptors. Out: addresses in this process.
Never: copies a byte.
"""

from __future__ import annotations

import itertools

from ...abc import Engine, RemoteRegion
from ...model import Region, Verb
from ...pool.memory import map_fd


class MapEngine(Engine):
    """Memory of one host, reached through descriptors."""

    verb = Verb.MAP
    recall = True
    pins = False

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        if fd < 0:
            raise ValueError("memory without a descriptor cannot be mapped by another process")
        return Region(next(self._ids), address, nbytes, b"", fd)

    def unregister(self, region: Region) -> None:
        """Nothing: a peer's mapping is the peer's own."""

    def attach(self, peer: str, region: Region) -> RemoteRegion:
        block = map_fd(region.fd, region.nbytes)
        return RemoteRegion(region.id, region.nbytes, block.address, block)

    def detach(self, remote: RemoteRegion) -> None:
        remote.handle.close()

    def close(self) -> None:
        """Nothing of its own."""
