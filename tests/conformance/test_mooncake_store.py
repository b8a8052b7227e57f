"""The promises of a transport, kept by Mooncake's store with a real master.

Those that say something of a store on asyncio, with the ends in two processes; all of them, in all ways and on both
kinds of loop, in the soak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from omni_async.cli.servers.mooncake import MooncakeMaster
from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, Conformance
from omni_async.testing.conformance.claims import Claims
from omni_async.testing.conformance.lifecycle import Lifecycle
from omni_async.testing.conformance.limits import PoolLimits
from omni_async.testing.conformance.peers import Peers
from omni_async.testing.conformance.round_trips import RoundTrips
from omni_async.testing.conformance.stored_streams import StoredStreams
from omni_async.testing.conformance.stores import Stores
from omni_async.testing.rig import LoopKind, Narrow
from tests.conformance.stored import LEASE, leased_master, lent
from tests.stores import mooncake_store_or_skip

ROOM = 16 << 20


@pytest.fixture(scope="session")
def master() -> Iterator[MooncakeMaster]:
    mooncake_store_or_skip()
    with leased_master() as started:
        yield started


@pytest.fixture(scope="session")
def narrow_extra() -> Iterator[Mapping[str, Any]]:
    """A store of 16 MiB."""
    mooncake_store_or_skip()
    with leased_master() as started, lent(started, ROOM) as extra:
        yield extra


class OverMooncake(Conformance):
    connector = "mooncake-store"
    kept = "tests.conformance.kept_by_mooncake_store:kept"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)
    survives = False
    lease = LEASE
    _master: MooncakeMaster
    _narrow: Mapping[str, Any]

    @pytest.fixture(autouse=True)
    def servers(self, master: MooncakeMaster, narrow_extra: Mapping[str, Any]) -> None:
        self._master, self._narrow = master, narrow_extra

    def extra(self, role: Role) -> Mapping[str, Any]:
        return self._master.extra(role)

    def narrow(self) -> Narrow:
        return Narrow(ROOM, {"sender": self._narrow, "receiver": self._narrow})


class TestMooncakeStore(
    OverMooncake, RoundTrips, Claims, PoolLimits, Lifecycle, Peers, Stores, StoredStreams
):
    ways = APART


@pytest.mark.soak
class TestMooncakeStoreWhole(OverMooncake, TransportConformance):
    pass


@pytest.mark.soak
class TestMooncakeStoreOnUvloopAll(OverMooncake, TransportConformance):
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)


@pytest.fixture(scope="session")
def lent_extra(master: MooncakeMaster) -> Iterator[Mapping[str, Any]]:
    """Options of a client that lends nothing."""
    with lent(master, 64 << 20) as extra:
        yield extra


class TestMooncakeStoreWithMemoryOfItsOwn(Stores, StoredStreams):
    """The senders lend nothing: what they put outlives their processes."""

    connector = "mooncake-store"
    kept = "tests.conformance.kept_by_mooncake_store:kept"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)
    ways = APART
    lease = LEASE
    _extra: Mapping[str, Any]

    @pytest.fixture(autouse=True)
    def servers(self, lent_extra: Mapping[str, Any]) -> None:
        self._extra = lent_extra

    def extra(self, role: Role) -> Mapping[str, Any]:
        return self._extra

    def narrow(self) -> Narrow:
        return Narrow(0, {"sender": self._extra, "receiver": self._extra})
