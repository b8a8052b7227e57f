"""A transport that is wired from parts: how it lingers, closes, and gives its parts back.

In: the parts. Out: a closed transport, whose memory is free as far as nobody uses it.
Never: moves a payload; a subclass's halves do.
"""

from __future__ import annotations

import abc
import asyncio
import warnings
from typing import Any, Generic, TypeVar

from ..errors import ClosedError
from ..model import Health
from ..pool import DropQueue
from .base import Transport
from .limits import put_limit
from .wiring import Parts

P = TypeVar("P", bound=Parts)


class WiredTransport(Transport, Generic[P]):
    """What transports over engines and over stores do alike."""

    _wiring: P
    _mapped = False
    """Peers reach the pool through mappings of their own: nothing has to stay for them."""
    _operations: str
    """What may be under way in the pool when its transport closes, for a warning."""

    async def drain(self, timeout: float | None = None) -> int:
        self._check()
        if self.role == "receiver":
            return 0
        limit = put_limit(timeout)
        deadline = None if limit is None else self._wiring.loop.time() + limit
        left = await self._drained(deadline)
        if self._closing is not None:  # dropped is not fetched
            raise ClosedError(f"transport {self.endpoint} was closed while it drained")
        return left

    def _health(self, **own: Any) -> Health:
        """What every transport tells, and what this one tells of itself."""
        wiring = self._wiring
        return Health(
            status="closed" if self.closed else "healthy",
            backend=wiring.backend,
            pool_size=wiring.pool.limit,
            **self.counters.as_dict(),
            pool_used=wiring.pool.used,
            quarantined=wiring.pool.quarantined,
            **own,
        )

    # --- closing ----------------------------------------------------------------------------------

    async def _close(self, linger: float) -> None:
        self._bound.check()
        try:
            if linger and self._closing is None:
                await self._stay(self._wiring.loop.time() + linger)
        finally:  # a cancellation ends the lingering, not the closing
            await self._shut()

    async def _shut(self) -> None:
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = self._wiring.loop.create_future()
        try:
            self._end(f"transport {self.endpoint} was closed")
            await self._settle()
        finally:
            self._over()

    def abort(self) -> None:
        self._bound.check()
        if self._closing is None:
            self._closing = self._wiring.loop.create_future()
            self._end(f"transport {self.endpoint} was closed")
            self._abandon()
            self._over()

    def _over(self) -> None:
        """Closing has come to its end: nothing uses the parts any more."""
        assert self._closing is not None
        self._closing.set_result(None)
        wiring = self._wiring
        wiring.drops.close()
        stuck = wiring.pool.close(mapped=self._mapped)
        wiring.executor.close()
        self._release_rest()
        if stuck and not self._mapped:
            warnings.warn(
                f"transport {self.endpoint} was closed with {stuck} slot(s) under {self._operations}; "
                "their memory stays",
                ResourceWarning,
                stacklevel=2,
            )

    def __del__(self, _warn: Any = warnings.warn) -> None:
        opened = hasattr(self, "_wiring")  # else there was never anything to close
        if opened and self._closing is None:
            _warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    # --- for subclasses ---------------------------------------------------------------------------

    @abc.abstractmethod
    async def _drained(self, deadline: float | None) -> int:
        """Of a sender: wait until everything is fetched; returns how much is not."""

    @abc.abstractmethod
    async def _stay(self, deadline: float) -> None:
        """Before closing: let receivers fetch what was put."""

    @abc.abstractmethod
    def _end(self, reason: str) -> None:
        """End what waits, and begin nothing any more."""

    @abc.abstractmethod
    async def _settle(self) -> None:
        """After that: wait for what is under way, within a limit."""

    @abc.abstractmethod
    def _abandon(self) -> None:
        """Instead: wait for nothing."""

    @abc.abstractmethod
    def _release_rest(self) -> None:
        """Give back what not every transport has."""


def drop_queue(loop: asyncio.AbstractEventLoop) -> DropQueue:
    """Where leases are told of whose last view is gone."""
    return DropQueue(loop, _let_go)


def _let_go(token: Any) -> None:
    token()
