"""Counters are the numbers of Health, by the same names."""

from __future__ import annotations

from omni_async.model import Health
from omni_async.observe import Counters


def test_counters_become_health() -> None:
    counters = Counters()
    counters.puts += 2
    counters.bytes_transferred += 4096
    health = Health(status="healthy", backend="memory", **counters.as_dict())
    assert (health.puts, health.gets, health.bytes_transferred) == (2, 0, 4096)
    assert set(counters.as_dict()) <= set(health.as_dict())
