"""Small steps that many cases take.

In: nothing. Out: values, and a wait for a gauge.
Never: asserts what a case is about.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import omni_async

Pair = tuple[omni_async.Transport, omni_async.Transport]
"""Sender and receiver."""

CHAIN: dict[str, Any] = {
    "stages": [
        {"stage_id": 0, "output_connectors": {"to_stage_1": "shared"}},
        {"stage_id": 1, "input_connectors": {"from_stage_0": "shared"}},
    ],
    "connectors": {"shared": {"name": "SharedMemoryConnector"}},
}
"""Two stages over shared memory, as a deploy file says it."""


def block(fill: int, nbytes: int = 100_000) -> Any:
    """Equal bytes."""
    return np.full(nbytes, fill, dtype=np.uint8)


async def until(condition: Callable[[], bool], what: str, limit: float = 5.0) -> None:
    """Wait for a gauge; gauges tell nobody when they change."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)
