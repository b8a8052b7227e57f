"""Faults that a test orders: what is to happen to the next operations of a double, in this process or a led one.

In: orders. Out: operations that are slow, stuck, failing, late or out of bounds.
Never: knows an engine, moves a byte by itself.

A test orders here, or in its peer process by ``use`` with one of the functions below::

    await peer.call("use", target="omni_async.testing.doubles.ordered:order", kind="stuck", landed=0.5)
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from .carrier import Carry, Piece, cut

KINDS = ("slow", "stuck", "failing", "late", "out_of_bounds")


class Fault(msgspec.Struct, frozen=True):
    """What is to happen to one operation."""

    kind: str
    """``slow``, ``stuck`` (until released), ``failing``, ``late`` (it is told to have failed, and its bytes move
    when released) or ``out_of_bounds``. A double need not know all of them."""
    seconds: float = 0.0
    landed: float = 0.0
    """Part of the bytes that is moved before: a stuck operation moves the rest when released, which
    makes it the late write that lands after everybody has given up."""
    status: int = -1


class Orders:
    """What was ordered for the operations of this process, first come first served."""

    def __init__(self) -> None:
        self._orders: deque[Fault] = deque()
        self.under_way = 0
        """Operations that have begun and not ended."""
        self.stuck = 0

    def order(self, *faults: Fault) -> None:
        """The next operations of this process suffer these."""
        self._orders.extend(faults)

    def clear(self) -> None:
        """Forget orders; release what is stuck."""
        self._orders.clear()
        self.release()

    def release(self) -> None:
        """Let all stuck operations go on to their end."""
        raise NotImplementedError

    def next(self) -> Fault | None:
        try:
            return self._orders.popleft()
        except IndexError:
            return None


class Failed(Exception):
    """An operation was ordered to fail, or its engine has ended it."""

    def __init__(self, fault: Fault | None) -> None:
        super().__init__("a failure was ordered" if fault else "its engine has ended it")
        self.fault = fault
        """``None`` where the life has ended it."""


class Life:
    """Of an engine that moves bytes: see :meth:`ThreadOrders.end`."""

    def __init__(self) -> None:
        self.over = False
        self.late: list[threading.Thread] = []
        """What operations that were told to have failed move yet."""


class ThreadOrders(Orders):
    """Orders for operations that run in threads, as a vendor's do. May be used from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._releases = 0
        self._watching: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.begun = 0
        """Operations that were begun so far."""

    def carry(self, pieces: Iterable[Piece], how: Carry, life: Life) -> None:
        """Move all pieces, in the calling thread, and suffer what was ordered.

        Args:
            life: whose :meth:`end` ends it.

        Raises:
            Failed: as was ordered (see ``fault``), or by :meth:`end`.
            OSError: of ``how``.
        """
        fault = self.next()
        small = list(cut(pieces))
        with self._changed:
            self.begun += 1
            self.under_way += 1
        at = len(small) if fault is None else int(fault.landed * len(small))
        try:
            self._all(small[:at], how, life)
            if fault is not None:
                self._happen(fault, small[at:], how, life)
            self._all(small[at:], how, life)
        finally:
            with self._changed:
                self.under_way -= 1
                self._changed.notify_all()

    def release(self) -> None:
        with self._changed:
            self._releases += 1
            self._changed.notify_all()

    def end(self, life: Life) -> None:
        """Nothing of it moves bytes any more, after the piece that is moving now."""
        with self._changed:
            life.over = True
            self._changed.notify_all()

    async def until_stuck(self) -> None:
        """Wait until an operation is stuck.

        Cancellation: safe.
        """
        with self._changed:
            if self.stuck:
                return
            loop = asyncio.get_running_loop()
            watcher = loop.create_future()
            self._watching.append((loop, watcher))
        await watcher

    def _all(self, pieces: Iterable[Piece], how: Carry, life: Life) -> None:
        for piece in pieces:
            if life.over:
                raise Failed(None)
            how(piece)

    def _happen(self, fault: Fault, rest: list[Piece], how: Carry, life: Life) -> None:
        if fault.kind == "slow":
            self._wait(life, fault.seconds, self._releases)
        elif fault.kind == "stuck":
            self._stick(life)
        elif fault.kind == "late":
            thread = threading.Thread(
                target=self._later, args=(rest, how, life), name="late", daemon=True
            )
            life.late.append(thread)
            thread.start()
            raise Failed(fault)
        else:
            raise Failed(fault)

    def _later(self, rest: list[Piece], how: Carry, life: Life) -> None:
        with contextlib.suppress(Failed, OSError):  # nobody waits for it
            self._stick(life)
            self._all(rest, how, life)

    def _stick(self, life: Life) -> None:
        with self._changed:
            before = self._releases  # not later: whoever hears of it may release it at once
            self.stuck += 1
            watching, self._watching = self._watching, []
        for loop, watcher in watching:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_tell, watcher)
        try:
            self._wait(life, None, before)
        finally:
            with self._changed:
                self.stuck -= 1

    def _wait(self, life: Life, seconds: float | None, before: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._releases != before or life.over, seconds)


def _tell(watcher: asyncio.Future[None]) -> None:
    if not watcher.done():
        watcher.set_result(None)


ORDERED = ThreadOrders()
"""Those for the doubles of vendors in this process."""


async def order(**fault: Any) -> None:
    """:meth:`Orders.order`, to be used in a peer process."""
    ORDERED.order(Fault(**fault))


async def release() -> None:
    """:meth:`Orders.release`, to be used in a peer process."""
    ORDERED.release()


async def clear() -> None:
    """:meth:`Orders.clear`, to be used in a peer process."""
    ORDERED.clear()


async def until_stuck() -> None:
    """:meth:`ThreadOrders.until_stuck`, to be used in a peer process."""
    await ORDERED.until_stuck()


async def begun() -> int:
    """:attr:`ThreadOrders.begun`, to be used in a peer process."""
    return ORDERED.begun
