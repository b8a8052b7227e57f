"""KV caches as the cases have them: a producer and a consumer that have the same layout and the same limits.

In: ends, limits. Out: both nodes, joined.
Never: is patient where a case has not told so.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.ends import Ends
from tests.kv.nodes import Node
from tests.kv.pairs import joined, pair

LATE = 480.0
"""Seconds that a producer of the reports kept its data for a consumer that had given up."""


@contextlib.asynccontextmanager
async def both(where: Ends, **limits: Any) -> AsyncIterator[tuple[Node, Node]]:
    """A producer whose caches are filled, and a consumer, in this loop."""
    source, target = pair({}, {})
    async with joined(where, source, target, limits=limits):
        yield source, target
