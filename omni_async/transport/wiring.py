"""The parts a direct transport is wired from, and the names it puts into errors.

In: a backend's parts. Out: one object that both halves share.
Never: decides anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._aio.executor import OwnedExecutor
from ..abc import Channels, Engine, Options
from ..model import Endpoint, Region, Role, TransferKey
from ..observe.counters import Counters
from ..observe.streams import StreamMeters
from ..pool import DropQueue, Pool
from ..rendezvous.messages import Hello, Regions, RegionWord

if TYPE_CHECKING:
    from .guests import Guest


@dataclass(frozen=True, slots=True)
class Parts:
    """What every transport has."""

    loop: asyncio.AbstractEventLoop
    backend: str
    endpoint: Endpoint
    pool: Pool
    drops: DropQueue
    executor: OwnedExecutor


@dataclass(frozen=True, slots=True)
class Wiring(Parts):
    role: Role
    options: Options
    hello: Hello
    channels: Channels
    engine: Engine
    counters: Counters
    meters: StreamMeters
    guests: dict[str, Guest] = field(default_factory=dict)
    """Rooms above that share the lines, by their topics."""
    brought: dict[int, Region] = field(default_factory=dict)
    """Regions of memory that belongs to guests."""

    @property
    def on_device(self) -> bool:
        """Whether the pool's memory cannot be reached from the host."""
        return self.engine.device != "cpu"

    def where(self, key: TransferKey, peer: str | None = None) -> dict[str, Any]:
        """Fields that every transfer error of this transport carries."""
        return {"key": key.key, "edge": key.edge, "backend": self.backend, "peer": peer}

    def regions(self, ids: list[int] | None = None) -> tuple[Regions, list[int]]:
        """The word that tells a peer of this side's regions, and the descriptors to send with it."""
        known = {**self.pool.regions, **self.brought}
        regions = [region for number, region in known.items() if ids is None or number in ids]
        words = [RegionWord(r.id, r.address, r.nbytes, r.descriptor, r.fd >= 0) for r in regions]
        return Regions(words), [r.fd for r in regions if r.fd >= 0]
