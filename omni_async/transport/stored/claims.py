"""Claims: what was read is deleted, so that nobody gets it again.

In: names of objects that were read. Out: deletions.
Never: lets a get of the same name find what was just handed over; deletes what was put since.
"""

from __future__ import annotations

import asyncio
import math
import time

from ...abc import Gone, Piece
from ...codec.frames import array_frame
from ...errors import EngineFault, TransferError
from ...observe.log import get_logger
from ..limits import ASK_SECONDS
from .landing import Landed
from .laying import lay_plain
from .opening import Opened
from .operations import Operation
from .wiring import StoreWiring

_log = get_logger("omni_async.transport")

TOGETHER = 100
SOON = 0.001
"""Seconds until what was handed over is deleted: together with what follows, and out of its way."""
_PATIENCE = 10.0


class Claims:
    """Deletes behind its readers where the store keeps others away meanwhile, else before them."""

    def __init__(self, wiring: StoreWiring) -> None:
        self._wiring = wiring
        self._behind: dict[str, asyncio.Future[None]] = {}
        """Names that are still to be deleted, or are just being."""
        self._queue: list[str] = []
        self._task: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def settled(self, operation: Operation, name: str, least: float) -> None:
        """Wait until what was handed over under that name is deleted. Cancellation: safe.

        Args:
            least: as for :meth:`Operation.answer`.
        """
        while name in self._behind:
            self._hurry()
            await operation.answer(self._behind[name], least)

    async def take(self, operation: Operation, landed: Landed, done: Opened) -> bool:
        """It is handed over; ``False``: somebody else has it.

        Cancellation: safe; what was deleted for a caller that has left is put back.
        """
        if done.consumers > 1:
            return True  # kept until cleanup or its time limit
        store, name = self._wiring.store, landed.name
        if store.guards:
            self.discard(name)
            return True
        landed.keep()
        left = False

        def leave(call: asyncio.Future[list[Gone]]) -> None:
            nonlocal left
            left = True
            self._wiring.operations.spawn(self._left(call, landed, done))

        try:
            # What is here is handed over, however short the caller's limit: that was for waiting.
            deletion = store.delete([name], own=True)
            [end] = await operation.call(deletion, least=ASK_SECONDS, left=leave)
        except EngineFault as error:
            # It may be gone. A value that was read is not given up for that.
            _log.warning("may be delivered again", name=name, error=str(error))
            return True
        finally:
            if not left:
                landed.drop()
        return end is not Gone.ABSENT

    async def _left(self, call: asyncio.Future[list[Gone]], landed: Landed, done: Opened) -> None:
        """The caller has left while it was deleted for it."""
        try:
            await asyncio.wait([call])
            if call.exception() is None and call.result() != [Gone.ABSENT]:
                await self._put_back(landed, done)
        finally:
            landed.drop()

    async def _put_back(self, landed: Landed, done: Opened) -> None:
        wiring, name = self._wiring, landed.name
        try:
            if done.moves is not None:
                done.moves.undo()
            ttl = done.expires - time.time() if done.expires else math.inf
            [there] = await wiring.store.contains([name])
            if there or ttl <= 0:
                return  # put again since, or out of time
            if landed.lease is not None:
                pieces = [Piece(landed.lease.address, landed.nbytes)]
                await wiring.store.put(name, pieces, ttl=ttl, timeout=_PATIENCE)
            else:
                laid = await lay_plain(wiring, array_frame(landed.array), name, None)
                try:
                    await wiring.store.put(name, laid.pieces, ttl=ttl, timeout=_PATIENCE)
                finally:
                    laid.drop()
        except TransferError as error:
            _log.warning(
                "lost: its get was cancelled, and it could not be put back",
                name=name,
                error=str(error),
            )

    def discard(self, name: str) -> None:
        """Delete it soon."""
        if name not in self._behind:
            self._behind[name] = self._wiring.loop.create_future()
            self._queue.append(name)
            if self._task is None and self._timer is None:
                self._timer = self._wiring.loop.call_later(SOON, self._begin)

    def _hurry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._begin()

    def _begin(self) -> None:
        self._timer = None
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
        self._hurry()
        if self._task is not None:
            await asyncio.shield(self._task)
