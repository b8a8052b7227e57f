"""The few tasks that streams need.

In: coroutines. Out: nothing; they report what they come to by themselves.
Never: leaves one running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from .._aio.finish import finish_all


class Tasks:
    """Owned by one adapter."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel all and wait for their end."""
        for task in list(self._running):
            task.cancel()
        await finish_all(list(self._running))
