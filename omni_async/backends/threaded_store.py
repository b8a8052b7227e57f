"""A store whose calls block: each runs in a thread of its own executor.

In: the calls of :class:`Store`. Out: futures that are under way.
Never: runs a call on the event loop; waits long for one when it closes.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from .._aio.executor import OwnedExecutor
from ..abc.store import Gone, Piece, Store

P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE = 1.5


class ThreadedStore(Store):
    """One client; the four methods with an underscore are called in threads.

    Args:
        name: of the threads.
        threads: calls at a time.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._executor = OwnedExecutor(name, threads)
        self._under_way: set[asyncio.Future[Any]] = set()

    def put(
        self, name: str, pieces: Sequence[Piece], *, ttl: float, timeout: float
    ) -> Awaitable[None]:
        return self._run(self._put, name, pieces)

    def get(self, name: str, address: int, room: int, *, timeout: float) -> Awaitable[int | None]:
        return self._run(self._get, name, address, room)

    def contains(self, names: Sequence[str]) -> Awaitable[list[bool]]:
        return self._run(self._contains, names)

    def delete(self, names: Sequence[str], *, own: bool = False) -> Awaitable[list[Gone]]:
        return self._run(self._delete, names, own)

    async def close(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_PATIENCE)
        self.abort()

    def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        job = self._executor.run(call, *args, **kwargs)
        self._under_way.add(job)
        job.add_done_callback(self._under_way.discard)
        return job

    # --- in threads -------------------------------------------------------------------------------

    @abc.abstractmethod
    def _put(self, name: str, pieces: Sequence[Piece]) -> None:
        """See :meth:`Store.put`."""

    @abc.abstractmethod
    def _get(self, name: str, address: int, room: int) -> int | None:
        """See :meth:`Store.get`."""

    @abc.abstractmethod
    def _contains(self, names: Sequence[str]) -> list[bool]:
        """See :meth:`Store.contains`."""

    @abc.abstractmethod
    def _delete(self, names: Sequence[str], own: bool) -> list[Gone]:
        """See :meth:`Store.delete`."""
