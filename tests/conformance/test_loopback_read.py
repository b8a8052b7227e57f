"""The promises of a transport, kept by an engine that speaks READ: the loopback double.

With the ends in two processes; in one loop, in the soak.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, ONE_LOOP
from omni_async.testing.rig import Way


class TestLoopbackRead(TransportConformance):
    connector = "loopback-read"
    target = "omni_async.testing.doubles.loopback:LoopbackRead"
    loops = ("asyncio",)
    ways: ClassVar[tuple[Way, ...]] = APART


@pytest.mark.soak
class TestLoopbackReadInOneLoop(TestLoopbackRead):
    ways = ONE_LOOP
