"""The promises of a transport, kept by Yuanrong's transfer engine: by what stands for the vendor and its NPUs here.

Across two processes, by a selection that shows what READ over a line between hosts has of its own; all of it, in
all ways and on both kinds of loop, in the soak.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, Conformance
from omni_async.testing.conformance.round_trips import RoundTrips
from omni_async.testing.conformance.streams import Streams
from omni_async.testing.rig import LoopKind, Way


class OnDouble(Conformance):
    connector = "yuanrong-te-double"
    target = "omni_async.testing.doubles.yuanrong_te:YuanrongTransferEngineDouble"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"inline_limit": 256}  # nearly all of it goes through the engine


class OnDevice(OnDouble):
    connector = "yuanrong-te-double-device"
    target = "omni_async.testing.doubles.yuanrong_te:YuanrongTransferEngineOnDevice"


@pytest.mark.soak
class TestYuanrongTeOnDevice(OnDevice, RoundTrips, Streams):
    ways: ClassVar[tuple[Way, ...]] = APART


@pytest.mark.soak
class TestYuanrongTe(OnDouble, TransportConformance):
    pass


@pytest.mark.soak
class TestYuanrongTeOnUvloop(OnDouble, TransportConformance):
    ways: ClassVar[tuple[Way, ...]] = APART
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)
