"""The line for space: first come, first served.

In: requests that could not be served at once. Out: each is granted, expires, or leaves, in order.
Never: polls; lets a small request pass a big one; loses what was granted to somebody who left.
"""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Line"]

T = TypeVar("T")


class _Waiter(Generic[T]):
    __slots__ = ("future", "nbytes", "owner")

    def __init__(self, nbytes: int, owner: str | None, future: asyncio.Future[T]) -> None:
        self.nbytes = nbytes
        self.owner = owner
        self.future = future


class Line(Generic[T]):
    """A line on one event loop.

    Args:
        grant: tries to serve a request of so many bytes; ``None`` means not yet.
        give_back: takes what was granted to a waiter that had left in the same moment.
    """

    def __init__(self, grant: Callable[[int], T | None], give_back: Callable[[T], None]) -> None:
        self._grant = grant
        self._give_back = give_back
        self._waiting: OrderedDict[_Waiter[T], None] = OrderedDict()
        self._serving = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(
        self,
        nbytes: int,
        *,
        deadline: float | None,
        owner: str | None,
        expired: Callable[[], BaseException],
    ) -> T:
        """Stand in line for ``nbytes`` bytes until granted.

        Args:
            deadline: time of the event loop's clock at which ``expired()`` is raised.
            owner: whose request this is, for :meth:`cancel`.

        Cancellation: safe; what was granted in the same moment is given back.
        """
        loop = asyncio.get_running_loop()
        waiter: _Waiter[T] = _Waiter(nbytes, owner, loop.create_future())
        self._waiting[waiter] = None
        timer = None
        if deadline is not None:
            timer = loop.call_at(deadline, self._expire, waiter, expired)
        try:
            return await waiter.future
        except (asyncio.CancelledError, GeneratorExit):
            if not loop.is_closed():  # else nobody is left to be served
                self._leave(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def serve(self) -> None:
        """Grant from the head on, as far as it goes. Call it whenever space came back."""
        if self._serving:  # granting may itself give space back; the outer loop sees to it
            return
        self._serving = True
        try:
            while self._waiting:
                waiter = next(iter(self._waiting))
                future = waiter.future
                if not future.done():
                    try:
                        granted = self._grant(waiter.nbytes)
                    except Exception as error:  # noqa: BLE001 - the waiter's to handle
                        if not future.done():
                            future.set_exception(error)
                    else:
                        if granted is None:
                            return
                        if future.done():  # it was ended by what granting set off
                            self._give_back(granted)
                        else:
                            future.set_result(granted)
                self._waiting.pop(waiter, None)
        finally:
            self._serving = False

    def cancel(self, owner: str | None, error: BaseException) -> int:
        """End the waiting of ``owner`` (``None``: of all) with a copy of ``error``; how many."""
        leaving = [w for w in self._waiting if owner is None or w.owner == owner]
        for waiter in leaving:
            del self._waiting[waiter]
            if not waiter.future.done():
                # One object raised in many tasks would gather the traceback of each.
                waiter.future.set_exception(copy.copy(error))
        self.serve()
        return len(leaving)

    def _expire(self, waiter: _Waiter[T], expired: Callable[[], BaseException]) -> None:
        if waiter in self._waiting:
            del self._waiting[waiter]
            if not waiter.future.done():
                waiter.future.set_exception(expired())
            self.serve()

    def _leave(self, waiter: _Waiter[T]) -> None:
        if waiter in self._waiting:
            del self._waiting[waiter]
            self.serve()
        elif not waiter.future.cancelled() and waiter.future.exception() is None:
            self._give_back(waiter.future.result())
