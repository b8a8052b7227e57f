"""LookUps: one loop that asks a store which of the payloads there are that somebody waits for.

In: names that are waited for. Out: each waiter is told once its name is there.
Never: asks while nobody waits; asks for more than a batch at a time; gives up because the store does not answer.

A store wakes nobody, so it is asked: first soon, then the more seldom the longer nothing has happened. Of many
who wait, each question names the newest, whose payloads are likely the next, and goes round the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from ..._aio.kernel_timer import KernelTimer
from ...errors import ClosedError, EngineFault
from ...observe.log import get_logger

_log = get_logger("omni_async.transport")

NEWEST = 16
"""A question's names are for one such part the ones that were added last, as long as these are
:data:`FRESH`."""
FRESH = 1.0
"""Seconds."""
SHORTEST = 0.0002
"""Seconds between two questions, at least."""
USUAL = 0.0012
"""At most, as long as something has happened in the last :data:`RECENT` seconds."""
LONGEST = 0.02
"""At most, when nothing has happened for long."""
RECENT = 5.0
SHARE = 1 / 250
"""Part of the time since something happened that the store is left alone."""
NAMES = 10_000 / 0.033
"""A second, at most: what names cost, they cost our process and the server. So many waiters are asked for in
33 ms each."""
TROUBLED = 0.25
"""Seconds between questions to a store that does not answer, at most."""

Contains = Callable[[Sequence[str]], Awaitable[list[bool]]]


class LookUps:
    """All names that gets of one transport wait for."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, contains: Contains, batch: int = 1000
    ) -> None:
        self._loop = loop
        self._contains = contains
        self._batch = batch
        self._newest = batch // NEWEST
        self._size = batch - self._newest
        """Who are asked for together, the newest left out."""
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Oldest first."""
        self._count = 0
        self._round: list[list[str]] = []
        """Of many, who is asked for together, in turn: oldest first."""
        self._turn = 0
        self._changed = True
        """Whether anybody has come or left since the round was made."""
        self._gone: set[str] = set()
        """Who has left since."""
        self._fresh = -FRESH
        """When the last one came."""
        self._unasked = False
        """Whether somebody has come since the last question."""
        self._event = 0.0
        """When the last one came or was told."""
        self._task: asyncio.Task[None] | None = None
        self._timer: KernelTimer | None = None
        self._tick: asyncio.Future[None] | None = None
        self._closed = False
        self.trouble: EngineFault | None = None
        """Why the store did not answer the last time."""
        self.questions = 0

    def __len__(self) -> int:
        """Waiters."""
        return self._count

    def wait(self, name: str) -> asyncio.Future[None]:
        """Done once there is something under that name. Cancel it to wait no more."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(name, []).append(future)
        self._changed = True
        self._count += 1
        future.add_done_callback(lambda done: self._left(name, done))
        self._event = self._fresh = self._loop.time()
        self._unasked = True
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif self._tick is not None:
            assert self._timer is not None
            self._timer.set(SHORTEST)
        return future

    def _left(self, name: str, future: asyncio.Future[None]) -> None:
        others = self._waiting.get(name)
        if others is not None and future in others:
            others.remove(future)
            self._count -= 1
            if not others:
                del self._waiting[name]
                self._changed = True
                self._gone.add(name)

    async def _run(self) -> None:
        pause, due, now = SHORTEST, 0.0, self._loop.time
        try:
            self._timer = KernelTimer(self._loop, self._over)
            while self._waiting and not self._closed:
                began = now()
                # Who comes is asked for soon; the others cannot be asked for each time that somebody does.
                early = began < due and len(self._waiting) > self._newest
                try:
                    await self._ask(self._latest() if early else self._next())
                    if not early:
                        pause = self._interval(now() - began)
                        due = now() + pause
                except EngineFault as error:
                    if self.trouble is None:
                        _log.warning("the store does not answer", error=str(error))
                    self.trouble = error
                    pause = min(2 * pause, TROUBLED)
                    due = now() + pause
                await self._pause(SHORTEST if self._unasked else due - now())
        except ClosedError:  # the store was closed under the question
            return
        finally:
            self._task = self._tick = None
            if self._timer is not None:
                self._timer.close()
                self._timer = None

    async def _pause(self, seconds: float) -> None:
        if self._closed or not self._waiting:
            return
        assert self._timer is not None
        self._tick = self._loop.create_future()
        self._timer.set(seconds)
        await self._tick
        self._tick = None

    def _over(self) -> None:
        if self._tick is not None and not self._tick.done():
            self._tick.set_result(None)

    async def _ask(self, names: list[str]) -> None:
        self.questions += 1
        self._unasked = False
        there = await self._contains(names)
        self.trouble = None
        if True not in there:  # most of the time, and quicker found out this way
            return
        for name, found in zip(names, there, strict=True):
            if found and name in self._waiting:
                self._event = self._loop.time()
                for future in list(self._waiting[name]):
                    if not future.done():
                        future.set_result(None)

    def _next(self) -> list[str]:
        """Whom to ask for now."""
        waiting = self._waiting
        if len(waiting) <= self._batch:
            self._round.clear()
            self._gone.clear()
            self._changed = True
            return list(waiting)
        names: list[str] = []
        while not names:
            if self._turn >= len(self._round):
                self._begin()
            names = self._round[self._turn]
            self._turn += 1
            if self._gone:
                names = [name for name in names if name not in self._gone]
        if self._loop.time() - self._fresh > FRESH:
            return names
        return list(dict.fromkeys([*self._latest(), *names]))

    def _latest(self) -> list[str]:
        return list(islice(reversed(self._waiting), self._newest))

    def _begin(self) -> None:
        """A round, mostly the same as the last one."""
        self._turn = 0
        if self._changed:
            names, size = list(self._waiting), self._size
            self._round = [names[start : start + size] for start in range(0, len(names), size)]
            self._gone.clear()
            self._changed = False

    def _interval(self, took: float) -> float:
        """Until the next question, where the last one took so long."""
        idle = self._loop.time() - self._event
        share, most = (SHARE, USUAL) if idle < RECENT else (USUAL / RECENT, LONGEST)
        asked = min(len(self._waiting), self._size)
        return max(min(idle * share, most), SHORTEST, asked / NAMES - took)

    def close(self) -> None:
        """Ask no more; a question under way is left to its end. Idempotent."""
        self._closed = True
        self._over()
