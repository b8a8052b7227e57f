"""The promises of a transport, kept by ``memory``."""

from __future__ import annotations

from omni_async.testing.conformance import TransportConformance
from omni_async.testing.rig import Way


class TestMemory(TransportConformance):
    connector = "memory"
    ways = (Way.ONE_LOOP,)
