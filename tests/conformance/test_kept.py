"""The promises of a transport over a store, kept by a store of one process: with guards for readers, and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.rig import LoopKind, Narrow, Way

ROOM = 1 << 20


class TestKept(TransportConformance):
    connector = "kept"
    target = "omni_async.testing.doubles.kept:KeptBackend"
    ways = (Way.ONE_LOOP,)
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)
    guards = True
    lease = 0.2

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"guards": self.guards, "tells": self.guards, "server": f"guards {self.guards}"}

    def narrow(self) -> Narrow:
        extra = {"server": f"narrow, guards {self.guards}", "capacity": ROOM}
        return Narrow(ROOM, {"sender": extra, "receiver": extra})


class TestKeptUnguarded(TestKept):
    guards = False


@pytest.mark.soak
class TestKeptOnUvloop(TestKept):
    loops = ("uvloop",)
