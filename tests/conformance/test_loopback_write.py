"""The promises of a transport, kept by an engine that speaks WRITE: the loopback double.

Where Mooncake's engine is installed its own run shows the same, so this one is left to the soak.
"""

from __future__ import annotations

import importlib.util

import pytest

from omni_async.testing.conformance import TransportConformance

if importlib.util.find_spec("mooncake"):
    pytestmark = pytest.mark.soak


class TestLoopbackWrite(TransportConformance):
    connector = "loopback-write"
    target = "omni_async.testing.doubles.loopback:LoopbackWrite"
    loops = ("asyncio",)
