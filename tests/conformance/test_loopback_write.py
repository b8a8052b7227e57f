"""The promises of a transport, kept by an engine that speaks WRITE: the loopback double."""

from __future__ import annotations

from omni_async.testing.conformance import TransportConformance


class TestLoopbackWrite(TransportConformance):
    connector = "loopback-write"
    target = "omni_async.testing.doubles.loopback:LoopbackWrite"
    loops = ("asyncio",)
