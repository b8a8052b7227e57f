"""Tasks that nobody awaits, kept alive until they end.

In: coroutines, the set that holds their tasks. Out: tasks, each in its set while it runs.
Never: cancels one; looks at what it came to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Begin it on the running loop, which itself holds tasks weakly only."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
