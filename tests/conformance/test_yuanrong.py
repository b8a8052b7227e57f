"""The promises of a transport, kept by openYuanrong's datasystem with a real worker.

In the soak: each transport starts a process for the vendor's client, half a second each, and the worker has some
hundreds of threads. What does not depend on the store, Mooncake's run shows in the suite; what does,
``tests/backends/yuanrong``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from omni_async.cli.servers.yuanrong import YuanrongWorker
from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import Conformance
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


@pytest.mark.soak
class TestYuanrong(OverYuanrong, TransportConformance):
    pass


@pytest.mark.soak
class TestYuanrongOnUvloop(OverYuanrong, TransportConformance):
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)
