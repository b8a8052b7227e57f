"""The promises of a transport, kept by MORI-IO's connector on its double.

What says something of the engine, with the ends in two processes; all of them, in all ways, with both interfaces and
on both kinds of loop, in the soak.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, Conformance
from omni_async.testing.conformance.claims import Claims
from omni_async.testing.conformance.round_trips import RoundTrips
from omni_async.testing.doubles.mori import MISUSE, uninstall
from omni_async.testing.rig import LoopKind


class OnDouble(Conformance):
    connector = "mori-on-double"
    target = "omni_async.testing.doubles.mori:MoriOnDouble"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)

    @pytest.fixture(autouse=True)
    def engine(self) -> Iterator[None]:
        yield
        uninstall()
        assert not MISUSE


class TestMori(OnDouble, RoundTrips, Claims):
    ways = APART


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
