"""The promises of a transport, kept by Mooncake's transfer engine over TCP.

All of them on asyncio; on uvloop those in which sockets and timers are watched, within one loop, and all in the soak.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import ONE_LOOP, Conformance
from omni_async.testing.conformance.lifecycle import Lifecycle
from omni_async.testing.conformance.round_trips import RoundTrips
from omni_async.testing.conformance.streams import Streams
from omni_async.testing.rig import LoopKind
from tests.engines import need_mooncake


class OverMooncake(Conformance):
    connector = "mooncake"
    kept = "tests.conformance.kept_by_mooncake:kept"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)

    @pytest.fixture(autouse=True)
    def engine(self) -> None:
        need_mooncake()

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"protocol": "tcp"}


class TestMooncake(OverMooncake, TransportConformance):
    pass


@pytest.mark.soak
class TestMooncakeOnUvloop(TestMooncake):
    loops = ("uvloop",)


class TestMooncakeOnUvloopInShort(OverMooncake, RoundTrips, Lifecycle, Streams):
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)
    ways = ONE_LOOP
