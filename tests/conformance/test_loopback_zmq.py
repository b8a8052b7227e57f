"""The promises of a transport, kept where words go over ZMQ: the loopback double with ports."""

from __future__ import annotations

from omni_async.testing.conformance import TransportConformance


class TestLoopbackZmq(TransportConformance):
    connector = "loopback-zmq"
    target = "omni_async.testing.doubles.addressed:LoopbackZmq"
    loops = ("asyncio",)
