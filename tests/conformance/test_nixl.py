"""The promises of a transport, kept by NIXL: by what UCX takes within one host, and over TCP.

In the soak, in all ways and on both kinds of loop: what is about words alone Mooncake's engine shows in the suite
over the same line, and what is about the engine ``tests/backends/nixl``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, Conformance
from omni_async.testing.rig import LoopKind, Way
from tests.engines import need_nixl


class ByNixl(Conformance):
    connector = "nixl"
    kept = "tests.conformance.kept_by_nixl:kept"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)

    @pytest.fixture(autouse=True)
    def engine(self) -> None:
        need_nixl()

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"inline_limit": 16 << 10}  # what is tried against short limits is small


class ByTcp(ByNixl):
    connector = "nixl-over-tcp"
    target = "tests.backends.nixl.over_tcp:NixlOverTcp"
    ways: ClassVar[tuple[Way, ...]] = APART


@pytest.mark.soak
class TestNixl(ByNixl, TransportConformance):
    pass


@pytest.mark.soak
class TestNixlOverTcp(ByTcp, TransportConformance):
    ways = TransportConformance.ways


@pytest.mark.soak
class TestNixlOnUvloop(ByNixl, TransportConformance):
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)


@pytest.mark.soak
class TestNixlOverTcpOnUvloop(ByTcp, TransportConformance):
    ways = TransportConformance.ways
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)
