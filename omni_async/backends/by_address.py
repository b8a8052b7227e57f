"""Engines whose vendor knows memory by its address and nothing else.

In: memory to register, regions that peers told. Out: numbered regions; a peer's region as where it begins there.
Never: moves a byte.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from ..abc import Engine, RemoteRegion
from ..model import Region
from .addressed import check_region


class Registry(Protocol):
    """The vendor, wrapped."""

    def register(self, address: int, nbytes: int) -> None: ...

    def unregister(self, address: int) -> None: ...


class EngineByAddress(Engine):
    """Keeps what is registered here; a :class:`RemoteRegion`'s ``handle`` is an address of the peer's."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ids = itertools.count(1)
        self._own: dict[int, Region] = {}

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        self._registry.register(address, nbytes)
        region = Region(next(self._ids), address, nbytes, b"", -1)
        self._own[region.id] = region
        return region

    def unregister(self, region: Region) -> None:
        if self._own.pop(region.id, None) is not None:
            self._registry.unregister(region.address)

    def attach(self, peer: str, region: Region) -> RemoteRegion:
        check_region(peer, region)
        return RemoteRegion(region.id, region.nbytes, 0, region.address)

    def detach(self, remote: RemoteRegion) -> None:
        """Nothing: the vendor was told nothing of it, and what is not in ``regions`` is not moved."""
