"""The promises of a transport, kept by an engine that speaks READ: the loopback double."""

from __future__ import annotations

from omni_async.testing.conformance import TransportConformance


class TestLoopbackRead(TransportConformance):
    connector = "loopback-read"
    target = "omni_async.testing.doubles.loopback:LoopbackRead"
    loops = ("asyncio",)
