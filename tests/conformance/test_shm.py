"""The promises of a transport, kept by ``shm``."""

from __future__ import annotations

from omni_async.testing.conformance import TransportConformance


class TestShm(TransportConformance):
    connector = "shm"
