"""The promises of a transport, kept by NIXL: over what UCX takes within one host, and over TCP.

What differs between the two is how bytes move, not how words do: over TCP those promises are in the suite
that bytes under way can break, and the others in the soak.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.rig import LoopKind
from tests.engines import need_nixl


class TestNixl(TransportConformance):
    connector = "nixl"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)

    @pytest.fixture(autouse=True)
    def engine(self) -> None:
        need_nixl()

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"inline_limit": 256}


class TestNixlOverTcp(TestNixl):
    connector = "nixl-over-tcp"
    target = "tests.backends.nixl.over_tcp:NixlOverTcp"
