"""Claims: what was read is deleted, so that nobody gets it again.

In: names of objects that were read. Out: deletions.
Never: lets a get of the same name find what was just handed over; deletes what was put since.
"""

from __future__ import annotations

import asyncio

from ...abc import Gone
from ...errors import EngineFault
from ...observe.log import get_logger
from .opening import Opened
from .operations import Operation
from .wiring import StoreWiring

_log = get_logger("omni_async.transport")

TOGETHER = 100


class Claims:
    """Deletes behind its readers where the store keeps others away meanwhile, else before them."""

    def __init__(self, wiring: StoreWiring) -> None:
        self._wiring = wiring
        self._behind: dict[str, asyncio.Future[None]] = {}
        """Names that are still to be deleted, or are just being."""
        self._queue: list[str] = []
        self._task: asyncio.Future[None] | None = None

    async def settled(self, operation: Operation, name: str) -> None:
        """Wait until what was handed over under that name is deleted. Cancellation: safe."""
        while name in self._behind:
            await operation.answer(self._behind[name])

    async def take(self, operation: Operation, name: str, done: Opened) -> bool:
        """It is handed over; ``False``: somebody else has it.

        Cancellation: safe; it is deleted then, or not.
        """
        if done.consumers > 1:
            return True  # kept until cleanup or its time limit
        store = self._wiring.store
        if store.guards:
            self.discard(name)
            return True
        try:
            [end] = await operation.call(store.delete([name], own=True))
        except EngineFault as error:
            # It may be gone. A value that was read is not given up for that.
            _log.warning("may be delivered again", name=name, error=str(error))
            return True
        return end is not Gone.ABSENT

    def discard(self, name: str) -> None:
        """Delete it soon."""
        if name not in self._behind:
            self._behind[name] = self._wiring.loop.create_future()
            self._queue.append(name)
            if self._task is None:
                self._task = self._wiring.operations.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._queue:
                names, self._queue = self._queue[:TOGETHER], self._queue[TOGETHER:]
                try:
                    await self._wiring.store.delete(names, own=True)
                except EngineFault as error:
                    _log.warning("may be delivered again", names=names, error=str(error))
                finally:
                    for name in names:
                        self._behind.pop(name).set_result(None)
        finally:
            self._task = None

    async def flush(self) -> None:
        """Wait until all is deleted. Cancellation: safe."""
        if self._task is not None:
            await asyncio.shield(self._task)
