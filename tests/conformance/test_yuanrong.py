"""The promises of a transport, kept by openYuanrong's datasystem with a real worker.

Always those that say something of this store; all of them, in all ways and on both kinds of loop, in the soak. Each
transport starts a process for the vendor's client, half a second each, so there is no time for all of them. What
does not depend on the store, Mooncake's run shows in all ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from omni_async.cli.servers.yuanrong import YuanrongWorker
from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.absence import Absence
from omni_async.testing.conformance.base import APART, ONE_LOOP, Conformance
from omni_async.testing.conformance.batches import Batches
from omni_async.testing.conformance.claims import Claims
from omni_async.testing.conformance.keys import Keys
from omni_async.testing.conformance.lifecycle import Lifecycle
from omni_async.testing.conformance.limits import PoolLimits
from omni_async.testing.conformance.ownership import Ownership
from omni_async.testing.conformance.peers import Peers
from omni_async.testing.conformance.round_trips import RoundTrips
from omni_async.testing.conformance.stored_streams import StoredStreams
from omni_async.testing.conformance.stores import Stores
from omni_async.testing.rig import LoopKind, Narrow
from tests.stores import loaded_or_skip

ROOM = 64 << 20
SOON = "--client_dead_timeout_s=3"
"""Until what a client had begun to put when it was killed is free again."""


@pytest.fixture(scope="module")
def worker() -> Iterator[YuanrongWorker]:
    loaded_or_skip("yr.datasystem.kv_client")
    yield from _served(YuanrongWorker(SOON, memory=512 << 20))


@pytest.fixture(scope="module")
def narrow_worker() -> Iterator[YuanrongWorker]:
    loaded_or_skip("yr.datasystem.kv_client")
    yield from _served(YuanrongWorker(SOON, memory=ROOM))


def _served(worker: YuanrongWorker) -> Iterator[YuanrongWorker]:
    with worker:
        yield worker
        worker.kill()  # asked to end, it takes five seconds


class OverYuanrong(Conformance):
    connector = "yuanrong"
    kept = "tests.conformance.kept_by_mooncake_store:kept"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)
    _worker: YuanrongWorker
    _narrow: YuanrongWorker

    @pytest.fixture(autouse=True)
    def servers(self, worker: YuanrongWorker, narrow_worker: YuanrongWorker) -> None:
        self._worker, self._narrow = worker, narrow_worker

    def extra(self, role: Role) -> Mapping[str, Any]:
        return self._worker.extra(role)

    def narrow(self) -> Narrow:
        extra = self._narrow.extra("sender")
        return Narrow(ROOM, {"sender": extra, "receiver": extra})


class TestYuanrong(OverYuanrong, RoundTrips, Absence, Keys, Claims, PoolLimits, Batches, Ownership):
    ways = ONE_LOOP


class TestYuanrongApart(OverYuanrong, Lifecycle, Peers, Stores, StoredStreams):
    ways = APART


@pytest.mark.soak
class TestYuanrongAll(OverYuanrong, TransportConformance):
    pass


@pytest.mark.soak
class TestYuanrongOnUvloop(OverYuanrong, TransportConformance):
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)
