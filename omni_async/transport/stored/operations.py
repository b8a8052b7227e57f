"""Operations: puts and gets under way, what each waits for, and what may end the waiting.

In: futures, calls to the store. Out: their results, or the reason for which nobody waits any more.
Never: cancels a call to the store; frees memory that one is using.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ..._aio.deadline import Deadlines
from ...pool import Lease

T = TypeVar("T")


class Late(Exception):
    """The deadline has passed; the caller knows what to say of it."""


class Operation:
    """One put or get."""

    __slots__ = ("_ended", "_future", "_operations", "deadline", "owner")

    def __init__(self, operations: Operations, owner: str, deadline: float | None) -> None:
        self._operations = operations
        self.owner = owner
        self.deadline = deadline
        """On the loop's clock."""
        self._future: asyncio.Future[Any] | None = None
        self._ended: BaseException | None = None

    async def answer(self, future: asyncio.Future[T], least: float = 0.0) -> T:
        """The future's result, unless the deadline passes or the operation is ended before.

        Args:
            least: seconds that are waited in any case.

        Raises:
            Late: the deadline has passed.

        Cancellation: safe; the future is left alone.
        """
        if self._ended is not None:
            raise self._ended
        loop, deadlines = self._operations.loop, self._operations.deadlines
        own: asyncio.Future[T] = loop.create_future()
        self._future = own
        future.add_done_callback(lambda done: _pass_on(done, own))
        token = None
        if self.deadline is not None and not future.done():
            when = max(self.deadline, loop.time() + least) if least else self.deadline
            token = deadlines.add(when, lambda: _fail(own, Late()))
        try:
            return await own
        finally:
            self._future = None
            if token is not None:
                deadlines.discard(token)

    async def pause(self, seconds: float) -> None:
        """Wait a while. Raises and cancellation: as for :meth:`answer`."""
        loop = self._operations.loop
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _done, over)
        try:
            await self.answer(over)
        finally:
            timer.cancel()

    async def call(
        self,
        work: Awaitable[T],
        leases: Iterable[Lease] = (),
        *,
        least: float = 0.0,
        left: Callable[[asyncio.Future[T]], None] | None = None,
    ) -> T:
        """The outcome of a call to the store, which uses these slots.

        Who gives up leaves it running: its slots are in quarantine until it ends.

        Args:
            least: seconds that are waited for it in any case.
            left: called with the call when nobody waits for it any more, though it may succeed or has just done so.

        Cancellation: safe, in that sense.
        """
        slots = list(leases)
        for lease in slots:
            lease.pin()
        future = self._operations.spawn(work)
        future.add_done_callback(lambda _: _unpin(slots))
        try:
            return await self.answer(future, least)
        except BaseException:
            if not future.done():
                for lease in slots:
                    lease.quarantine()
            failed = future.done() and (future.cancelled() or future.exception() is not None)
            if left is not None and not failed:
                left(future)
            raise

    def end(self, error: BaseException) -> bool:
        """Whatever it waits for, or will wait for, ends with ``error``; whether it was going on."""
        if self._ended is not None:
            return False
        self._ended = error
        if self._future is not None:
            _fail(self._future, error)
        return True


class Operations:
    """All operations of one transport, and its calls to the store."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.deadlines = Deadlines(loop)
        self._by_owner: dict[str, dict[Operation, None]] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._count = 0

    def __len__(self) -> int:
        """Operations under way."""
        return self._count

    def begin(self, owner: str, deadline: float | None) -> Operation:
        """One more; to be ended by :meth:`over`."""
        operation = Operation(self, owner, deadline)
        self._by_owner.setdefault(owner, {})[operation] = None
        self._count += 1
        return operation

    def over(self, operation: Operation) -> None:
        """It has ended."""
        others = self._by_owner[operation.owner]
        del others[operation]
        if not others:
            del self._by_owner[operation.owner]
        self._count -= 1

    def spawn(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Work that is known until it has ended."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waits sees it; nobody may

    def cancel(self, owner: str, error: BaseException) -> int:
        """End the operations of an owner; how many were going on."""
        return sum(operation.end(error) for operation in list(self._by_owner.get(owner, ())))

    def close(self, error: BaseException) -> None:
        """End all operations. Calls to the store go on."""
        for owner in list(self._by_owner):
            self.cancel(owner, error)
        self.deadlines.close()

    async def settle(self, timeout: float) -> int:
        """Wait for calls under way; how many there still are."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout)
        return len(self._tasks)


def _pass_on(done: asyncio.Future[T], own: asyncio.Future[T]) -> None:
    if own.done():
        return
    if done.cancelled():
        own.cancel()
    elif (error := done.exception()) is not None:
        own.set_exception(error)
    else:
        own.set_result(done.result())


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _unpin(slots: list[Lease]) -> None:
    for lease in slots:
        lease.unpin()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
