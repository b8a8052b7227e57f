"""The promises of a transport, kept where words go over ZMQ: the loopback double with ports.

Where Mooncake's engine is installed its own run shows the same, so this one is left to the soak.
"""

from __future__ import annotations

import importlib.util

import pytest

from omni_async.testing.conformance import TransportConformance

if importlib.util.find_spec("mooncake"):
    pytestmark = pytest.mark.soak


class TestLoopbackZmq(TransportConformance):
    connector = "loopback-zmq"
    target = "omni_async.testing.doubles.addressed:LoopbackZmq"
    loops = ("asyncio",)
