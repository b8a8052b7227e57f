"""A sender and a receiver, for tests that need both in one loop.

In: a backend's name and its options. Out: two open transports.
Never: waits for what nobody fetched.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import omni_async


@contextlib.asynccontextmanager
async def open_pair(
    backend: str, namespace: str, **extra: Any
) -> AsyncIterator[tuple[omni_async.Transport, omni_async.Transport]]:
    """A sender of stage 0 and a receiver of stage 1 in this loop."""
    spec = {"name": backend, "extra": extra}
    async with (
        omni_async.open_transport(
            spec, role="sender", stage="0", namespace=namespace, linger=0
        ) as sender,
        omni_async.open_transport(
            spec, role="receiver", stage="1", namespace=namespace
        ) as receiver,
    ):
        yield sender, receiver
