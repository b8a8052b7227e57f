"""The promises of a transport, kept by MORI-IO's connector on its double.

Those in which an engine's write is awaited, given up or lost, with the sender in another process; all of them, streams
included, in all ways, with both interfaces, over both ways and on both kinds of loop, in the soak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, Conformance
from omni_async.testing.conformance.batches import Batches
from omni_async.testing.conformance.claims import Claims
from omni_async.testing.doubles.mori import MISUSE, uninstall
from omni_async.testing.rig import LoopKind, Way
from tests.backends.mori.over_xgmi import OPTIONS


class OnDouble(Conformance):
    connector = "mori-on-double"
    target = "omni_async.testing.doubles.mori:MoriOnDouble"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)

    @pytest.fixture(autouse=True)
    def engine(self) -> Iterator[None]:
        yield
        uninstall()
        assert not MISUSE


class TestMori(OnDouble, Claims, Batches):
    ways: ClassVar[tuple[Way, ...]] = (Way.SENDER_AWAY,)

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"inline_limit": 256}  # so that the engine carries nearly all


@pytest.mark.soak
class TestMoriWhole(OnDouble, TransportConformance):
    pass


@pytest.mark.soak
class TestMoriOnUvloop(OnDouble, TransportConformance):
    loops: ClassVar[tuple[LoopKind, ...]] = ("uvloop",)


@pytest.mark.soak
class TestMori10(OnDouble, TransportConformance):
    connector = "mori-on-double-1.0"
    target = "omni_async.testing.doubles.mori:MoriOnDouble10"
    ways = APART


@pytest.mark.soak
class TestMoriXgmi(OnDouble, TransportConformance):
    connector = "mori-xgmi-on-double"
    target = "tests.backends.mori.over_xgmi:XgmiOnDouble"
    ways = APART

    def extra(self, role: Role) -> Mapping[str, Any]:
        return OPTIONS
