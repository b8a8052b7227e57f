"""The promises of a transport, kept by an engine that speaks MAP: the loopback double."""

from __future__ import annotations

from omni_async.testing.conformance import TransportConformance


class TestLoopbackMap(TransportConformance):
    connector = "loopback-map"
    target = "omni_async.testing.doubles.loopback:LoopbackMap"
    loops = ("asyncio",)
