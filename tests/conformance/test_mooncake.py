"""The promises of a transport, kept by Mooncake's transfer engine over TCP.

All of them on asyncio; on uvloop those within one loop, and the others in the soak: what differs there is how
sockets and timers are watched, which one process shows as well as two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, ONE_LOOP
from omni_async.testing.rig import LoopKind
from tests.engines import need_mooncake


class TestMooncake(TransportConformance):
    connector = "mooncake"
    kept = "tests.conformance.kept_by_mooncake:kept"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)

    @pytest.fixture(autouse=True)
    def engine(self) -> None:
        need_mooncake()

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"protocol": "tcp"}


class TestMooncakeOnUvloop(TestMooncake):
    loops = ("uvloop",)
    ways = ONE_LOOP


@pytest.mark.soak
class TestMooncakeOnUvloopApart(TestMooncake):
    loops = ("uvloop",)
    ways = APART
