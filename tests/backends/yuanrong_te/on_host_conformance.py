"""The promises of a transport, kept by the vendor's own engine on a stand-in for CANN: run by ``test_on_host.py``.

In a run of pytest of its own, since no process may have this vendor's library and Mooncake's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART
from omni_async.testing.rig import LoopKind, Way


class TestOnHost(TransportConformance):
    connector = "yuanrong-te-on-host"
    target = "tests.backends.yuanrong_te.on_host:YuanrongTransferEngineOnHost"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)
    ways: ClassVar[tuple[Way, ...]] = APART

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"inline_limit": 256}
