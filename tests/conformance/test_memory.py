"""The promises of a transport, kept by ``memory``."""

from __future__ import annotations

from omni_async.testing.conformance import TransportConformance


class TestMemory(TransportConformance):
    connector = "memory"
    two_processes = False
