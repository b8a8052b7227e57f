"""The promises of a transport over a store, kept by a store of one process: with guards for readers, and without.

Where a real store of that kind is installed its own run shows the same, so this one is left to the soak.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import Conformance
from omni_async.testing.rig import LoopKind, Narrow, Way

ROOM = 1 << 20


def without(module: str) -> pytest.MarkDecorator:
    """Always where that is not installed, else in the soak."""
    there = importlib.util.find_spec(module) is not None
    return pytest.mark.soak if there else pytest.mark.filterwarnings("error")


class OverKept(Conformance):
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


@without("mooncake")
class TestKept(OverKept, TransportConformance):
    pass


@without("yr")
class TestKeptUnguarded(OverKept, TransportConformance):
    guards = False
    lease = 0.0


@pytest.mark.soak
class TestKeptOnUvloop(OverKept, TransportConformance):
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)
