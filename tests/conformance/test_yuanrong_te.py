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
from omni_async.testing.conformance.claims import Claims
from omni_async.testing.conformance.peers import Peers
from omni_async.testing.conformance.round_trips import RoundTrips
from omni_async.testing.conformance.stream_ends import StreamEnds
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

    @pytest.fixture(autouse=True)
    def torch(self) -> None:
        pytest.importorskip("torch")


class TestYuanrongTe(OnDouble, Claims, Peers):
    ways: ClassVar[tuple[Way, ...]] = (Way.RECEIVER_AWAY,)


class TestYuanrongTeStreams(OnDevice, Streams):
    """And by the way of a pool that the host does not see."""

    ways: ClassVar[tuple[Way, ...]] = (Way.SENDER_AWAY,)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
class TestYuanrongTeOnDevice(OnDevice, RoundTrips, Streams, StreamEnds, Claims, Peers):
    ways: ClassVar[tuple[Way, ...]] = APART
    test_built_in_place: Any = None
    """There is no building in place where the host does not see."""


@pytest.mark.soak
class TestYuanrongTeWhole(OnDouble, TransportConformance):
    pass


@pytest.mark.soak
class TestYuanrongTeOnUvloop(OnDouble, TransportConformance):
    ways: ClassVar[tuple[Way, ...]] = APART
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)
