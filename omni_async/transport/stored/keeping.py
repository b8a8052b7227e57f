"""The sender's half of a transport over a store: codec → pool → store.

In: values to put. Out: receipts; objects in the store, until they are fetched, cleaned up, or have expired.
Never: takes back what a receiver is reading; learns that something was fetched, unless it asks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import Any

from ...codec import encode
from ...errors import (
    ClosedError,
    EngineFault,
    KeyExists,
    PoolExhausted,
    TransferCancelled,
    TransferError,
    TransferTimeout,
)
from ...interop.vllm_omni.writing import write
from ...model import Receipt, TransferKey
from ..limits import ASK_SECONDS
from .backlog import Backlog, Kept
from .head import Head
from .laying import Laid, lay, lay_plain
from .names import Names, plain
from .operations import Late, Operation
from .turns import Turns
from .wiring import StoreWiring

CONFIRM_SECONDS = 0.25
"""How long a put waits for a receiver that has just read what was put under its key before."""
FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.05
"""Seconds between two tries at a store that has no room."""


class Keeping:
    """Puts, and remembers what it has put."""

    def __init__(self, wiring: StoreWiring) -> None:
        self._wiring = wiring
        store = wiring.store
        self._text = Names(wiring.endpoint, "sender", store.separator)
        self.backlog = Backlog(wiring)
        self._turns = Turns(wiring.loop)
        self._closed = False
        self.moving = 0
        """Puts whose bytes are on their way to the store."""

    async def put(
        self, where: TransferKey, value: Any, owner: str, consumers: int, limit: float | None
    ) -> Receipt:
        """Encode, lay out, and hand over.

        Raises and cancellation: as for :meth:`omni_async.Transport.put`.
        """
        wiring = self._wiring
        deadline = None if limit is None else wiring.loop.time() + limit
        operation = wiring.operations.begin(owner, deadline)
        try:
            return await self._put(operation, where, value, consumers)
        except TransferTimeout:
            raise
        except TransferError as error:
            raise wiring.located(error, "put", where) from error.__cause__
        except Late:
            raise TransferTimeout(
                f"put of {where.key!r} on {where.edge} timed out after {limit:g} s: "
                f"{wiring.store.address} has not taken it",
                phase="putting",
                timeout=limit,
                **wiring.where(where),
            ) from None
        finally:
            wiring.operations.over(operation)

    async def _put(
        self, operation: Operation, where: TransferKey, value: Any, consumers: int
    ) -> Receipt:
        wiring = self._wiring
        name, text, laid, nbytes = await self._laid(operation, where, value, consumers)
        kept = Kept(name, text, operation.owner, math.inf)
        try:
            await self.backlog.claim(operation, name)
            try:
                await self._hand_over(operation, kept, laid)
                if not self._closed:
                    self.backlog.add(kept)
            finally:
                self.backlog.release(name)
        finally:
            laid.drop()
        if self._closed:
            raise ClosedError(f"transport {wiring.endpoint} was closed during the put")
        return Receipt(nbytes, None)

    async def _laid(
        self, operation: Operation, where: TransferKey, value: Any, consumers: int
    ) -> tuple[str, str, Laid, int]:
        """The name, and the object in the pool."""
        wiring = self._wiring
        store, owner, deadline = wiring.store, operation.owner, operation.deadline
        if wiring.foreign:
            text = plain(where, store.separator)
            name = store.plain_name(text)
            frame = write(value)
            return name, text, await lay_plain(wiring, frame, owner, deadline), frame.nbytes
        text = self._text(where)
        encoded = encode(value)
        ttl = wiring.options.ttl
        head = Head(
            text,
            encoded.nbytes,
            [len(encoded.header), *(frame.nbytes for frame in encoded.frames)],
            encoded.fast,
            consumers,
            0.0 if math.isinf(ttl) else time.time() + ttl,
            random.getrandbits(63),
        )
        laid = await lay(wiring, encoded, head, owner, deadline)
        return store.name(text), text, laid, encoded.nbytes

    async def _hand_over(self, operation: Operation, kept: Kept, laid: Laid) -> None:
        """Until the store has it, or will not take it."""
        loop = self._wiring.loop
        patience, pause = 0.0, FIRST_PAUSE
        full = PoolExhausted(f"no room for {laid.nbytes:,} bytes: other puts wait before this one")
        # Who comes while others wait for room is served after them.
        turn = await self._turns.join(operation, full) if self._turns else None
        try:
            while True:
                try:
                    return await self._try(operation, kept, laid)
                except Late:
                    if turn is None:
                        raise
                    raise full from None  # it is still full, or does not say so in time
                except KeyExists:
                    patience = patience or loop.time() + CONFIRM_SECONDS
                    if loop.time() >= patience:
                        raise
                    await operation.pause(pause)
                except PoolExhausted as error:
                    full = error
                    if turn is None:
                        turn = await self._turns.join(operation, full)
                    await self._room(operation, full, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            if turn is not None:
                self._turns.leave(turn)

    @staticmethod
    async def _room(operation: Operation, full: PoolExhausted, pause: float) -> None:
        try:
            await operation.pause(pause)
        except Late:
            raise full from None

    async def _try(self, operation: Operation, kept: Kept, laid: Laid) -> None:
        wiring = self._wiring
        timeout = max(ASK_SECONDS, wiring.left(operation.deadline))
        work = wiring.store.put(kept.name, laid.pieces, ttl=wiring.options.ttl, timeout=timeout)
        self.moving += 1
        try:
            await operation.call(
                work,
                laid.leases,
                # The time limit is for room: what finds room at once is handed over.
                least=ASK_SECONDS,
                left=lambda call: self.backlog.linger(kept, call),
            )
        finally:
            self.moving -= 1
        kept.expires = wiring.loop.time() + wiring.options.ttl

    def fate(self, where: TransferKey) -> asyncio.Future[bool] | None:
        """As for :meth:`Transport.fate`."""
        return self.backlog.fate(self._wiring.store.name(self._text(where)))

    # --- the rest ---------------------------------------------------------------------------------

    async def cleanup(self, owner: str) -> int:
        """Drop what an owner has put, and end its puts. Cancellation: safe."""
        error = TransferCancelled(f"{owner!r} was ended by cleanup", key=owner)
        ended = self._wiring.operations.cancel(owner, error)
        return ended + await self.backlog.drop(owner)

    async def drain(self, deadline: float | None) -> int:
        """Wait until all is fetched; how much is not. Cancellation: safe."""
        return await self.backlog.drain(deadline)

    def close(self, reason: str) -> None:
        """Put no more."""
        self._closed = True
        self.backlog.close()
        self._wiring.operations.close(ClosedError(reason))

    async def settle(self) -> None:
        """What only this sender would delete is deleted."""
        try:
            await self.backlog.forget()
        except EngineFault:
            return  # the store has gone, and so have they
