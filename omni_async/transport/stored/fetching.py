"""The receiver's half of a transport over a store: store → pool → codec.

In: keys to get. Out: deliveries over views of the own pool.
Never: deletes what it has not handed over, or what it may not have read; asks for each waiting get by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import (
    ClosedError,
    DecodeError,
    EngineFault,
    KeyNotFound,
    ServerUnreachable,
    TransferCancelled,
    TransferError,
    TransferTimeout,
)
from ...model import TransferKey
from ..delivery import Delivery
from ..limits import ASK_SECONDS, DEFAULT, Timeout, move_limit
from .claims import Claims
from .head import Replaced
from .landing import Landed, Landing
from .lookups import LookUps
from .names import Names, plain
from .opening import Opened, opened, opened_foreign
from .operations import Late, Operation
from .wiring import StoreWiring

WAITING = "waiting for the payload"
ASKING = "asking for the payload"
AT_ONCE = 16
"""Gets that try their luck before they stand in the line of those who wait: of many, most would find
nothing, and each would have asked by itself."""


AGAIN_SECONDS = 0.005
"""Until an object that was replaced while it was read is read again."""


class Fetching:
    """Gets."""

    def __init__(self, wiring: StoreWiring) -> None:
        self._wiring = wiring
        self.names = Names(wiring.endpoint, "receiver", wiring.store.separator)
        self.lookups = LookUps(wiring.loop, self._contains, wiring.store.question)
        self._claims = Claims(wiring)
        self._landing = Landing(wiring)
        self._trying = 0
        self.moving = 0

    async def _contains(self, names: Any) -> list[bool]:
        wiring = self._wiring
        return await wiring.operations.spawn(wiring.store.contains(names))

    async def get(
        self,
        where: TransferKey,
        timeout: Timeout,
        limit: float | None,
        raw: bool,
        copy: bool | None,
        device: Any,
    ) -> Delivery:
        """Wait, fetch, decode, and delete.

        Raises and cancellation: as for :meth:`omni_async.Transport.get`.
        """
        wiring = self._wiring
        deadline = None if limit is None else wiring.loop.time() + limit
        text, name = self._named(where)
        operation = wiring.operations.begin(where.key, deadline)
        phase = _Phase(WAITING, limit)
        try:
            looked = False
            while True:
                landed = await self._found(operation, name, where, timeout, phase)
                try:
                    done = await self._open(landed, where, text, raw, copy, device)
                    if await self._claims.take(operation, landed, done):
                        return Delivery(done.value, done.nbytes, where.key, done.hold)
                    del done  # an error's frames must not hold what somebody else has got
                except Replaced:
                    await self._moment(operation, timeout)
                except DecodeError as error:
                    if error.missing is not None or wiring.foreign:
                        raise
                    if looked:
                        self._claims.discard(name)  # nobody can ever read it
                        raise
                    looked = True  # it may have been replaced while it was read
                finally:
                    landed.drop()
                    del landed
                phase = _Phase(WAITING, limit)
                operation.deadline = deadline
        except TransferTimeout:
            raise
        except DecodeError as error:
            raise error.with_traceback(None) from error.__cause__  # its frames hold the payload
        except TransferError as error:
            raise wiring.located(error, "get", where) from error.__cause__
        except Late:
            raise self._late(where, phase) from None
        finally:
            wiring.operations.over(operation)

    async def _moment(self, operation: Operation, timeout: Timeout) -> None:
        """Until whoever is writing what was read has done so."""
        if timeout is not DEFAULT and timeout == 0:
            raise KeyNotFound("it is being replaced now")
        await operation.pause(AGAIN_SECONDS)

    def _named(self, where: TransferKey) -> tuple[str, str]:
        store = self._wiring.store
        if self._wiring.foreign:
            text = plain(where, store.separator)
            return text, store.plain_name(text)
        text = self.names(where)
        return text, store.name(text)

    async def _found(
        self,
        operation: Operation,
        name: str,
        where: TransferKey,
        timeout: Timeout,
        phase: _Phase,
    ) -> Landed:
        """The object in the own pool."""
        now = self._wiring.loop.time
        once = timeout is not DEFAULT and timeout == 0
        waits = not once and (self._trying >= AT_ONCE or len(self.lookups) > AT_ONCE)
        await self._claims.settled(operation, name, ASK_SECONDS if once else 0.0)
        while True:
            if waits:
                await self._wait(operation, name)
            landed = await self._fetch(operation, name, where, phase, timeout)
            if landed is not None:
                if timeout is DEFAULT:
                    phase.limit = move_limit(landed.nbytes)
                    operation.deadline = now() + phase.limit
                return landed
            if once:
                raise KeyNotFound("it is not there now")
            waits = True

    async def _wait(self, operation: Operation, name: str) -> None:
        there = self.lookups.wait(name)
        try:
            await operation.answer(there)
        finally:
            there.cancel()

    async def _fetch(
        self, operation: Operation, name: str, where: TransferKey, phase: _Phase, timeout: Timeout
    ) -> Landed | None:
        once = timeout is not DEFAULT and timeout == 0
        least = move_limit if timeout is DEFAULT else _at_least(ASK_SECONDS if once else 0.0)
        self._trying += 1
        phase.text = ASKING
        try:
            landed = await self._landing.fetch(operation, name, where.edge, least)
            phase.text = WAITING
            return landed
        except ServerUnreachable as error:
            if once:
                raise
            # Who waits goes on waiting: a server may come back, and the deadline is the caller's.
            self.lookups.trouble = error
            phase.text = WAITING
            return None
        finally:
            self._trying -= 1

    async def _open(
        self,
        landed: Landed,
        where: TransferKey,
        text: str,
        raw: bool,
        copy: bool | None,
        device: Any,
    ) -> Opened:
        """The value, or why there is none.

        Raises:
            KeyNotFound: it has expired.
            DecodeError: it is no payload; it stays where it is.
        """
        wiring = self._wiring
        self.moving += 1
        try:
            if wiring.foreign:
                return await opened_foreign(wiring, landed, where.key, raw, copy, device)
            done = await opened(wiring, landed, text, raw, copy, device)
        finally:
            self.moving -= 1
        if done is None:
            raise KeyNotFound(
                "it has expired, nobody fetched it within buffer_ttl_seconds", expired=True
            )
        return done

    def _late(self, where: TransferKey, phase: _Phase) -> TransferTimeout:
        wiring = self._wiring
        trouble = self.lookups.trouble
        state = "it is not there"
        if trouble is not None:
            state = f"{wiring.store.address} does not answer: {trouble}"
        elif phase.text == ASKING:
            state = f"{wiring.store.address} has not answered"
        return TransferTimeout(
            f"get of {where.key!r} on {where.edge} timed out after {phase.limit or 0:g} s while "
            f"{phase.text}; {state}",
            phase=phase.text,
            timeout=phase.limit,
            **wiring.where(where),
        )

    # --- the rest ---------------------------------------------------------------------------------

    def cleanup(self, owner: str) -> int:
        """Wake the waiting gets of a key of that name."""
        error = TransferCancelled(f"{owner!r} was ended by cleanup", key=owner)
        return self._wiring.operations.cancel(owner, error)

    def close(self, reason: str) -> None:
        """Get no more."""
        self.lookups.close()
        self._wiring.operations.close(ClosedError(reason))

    async def settle(self) -> None:
        """What was handed over is deleted."""
        try:
            await self._claims.flush()
        except EngineFault:
            return  # the store has gone, and so have they


def _at_least(seconds: float) -> Callable[[int], float]:
    return lambda nbytes: seconds


class _Phase:
    """What a get is at, for its error."""

    __slots__ = ("limit", "text")

    def __init__(self, text: str, limit: float | None) -> None:
        self.text = text
        self.limit = limit
