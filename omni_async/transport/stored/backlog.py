"""Backlog: what a sender has put and nobody is known to have fetched.

In: names and owners. Out: deletions: of what has expired, was cleaned up, or was put after its caller had left.
Never: deletes what was put under a name since; takes away what a receiver is reading.

The store tells nobody that something was fetched. So names stay here until they would expire, and are then
found absent; the sender asks before that only when it is told to drain, or when there are very many.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import islice

from ...abc import Gone
from ...codec.frames import bytes_frame
from ...errors import EngineFault, TransferError
from ...observe.log import get_logger
from .head import Head, seal
from .laying import lay_plain
from .lookups import BATCH
from .operations import Operation
from .wiring import StoreWiring

_log = get_logger("omni_async.transport")

TOGETHER = 100
"""Names in one deletion."""
AGAIN_SECONDS = 0.25
"""Until something that was being read, or a store that did not answer, is tried again; then twice as long."""
LONGEST_SECONDS = 5.0
GIVEN_UP_SECONDS = 60.0
"""After this long what cannot be deleted is left to the store."""
MANY = 20_000
"""Names beyond which the sender asks which of them are still there."""
MARKER_SECONDS = 300.0
MARKERS = 1000
"""How long, and of how many at most, it is remembered that they have expired."""
DRAIN_PAUSE = 0.005
LONGEST_DRAIN_PAUSE = 0.1


class Kept:
    """One payload in the store."""

    __slots__ = ("began", "expires", "marker", "name", "owner", "text", "token")

    def __init__(self, name: str, text: str, owner: str, expires: float) -> None:
        self.name = name
        self.text = text
        self.owner = owner
        self.expires = expires
        """On the loop's clock."""
        self.marker = False
        """Only word that it has expired."""
        self.token: int | None = None
        self.began: float | None = None
        """When it was first tried to delete it."""


class Backlog:
    """The payloads of one sender, by name and by owner."""

    def __init__(self, wiring: StoreWiring) -> None:
        self._wiring = wiring
        self._kept: dict[str, Kept] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self._putting: Counter[str] = Counter()
        self._ending: dict[str, asyncio.Future[None]] = {}
        """Names that are being deleted: nothing is put there meanwhile."""
        self._due: dict[str, None] = {}
        self._expiring: asyncio.Future[None] | None = None
        self._sweeping: asyncio.Future[None] | None = None
        self._markers = 0

    def __len__(self) -> int:
        return len(self._kept) - self._markers

    # --- for puts ---------------------------------------------------------------------------------

    async def claim(self, operation: Operation, name: str) -> None:
        """A put of that name begins; to be ended by :meth:`release`. Cancellation: safe."""
        while name in self._ending:
            await operation.answer(self._ending[name])
        self._putting[name] += 1
        kept = self._kept.get(name)
        if kept is not None and kept.marker:
            self._remove(kept)
            try:
                await operation.call(self._wiring.store.delete([name], own=True))
            except BaseException:
                self.release(name)
                raise

    def release(self, name: str) -> None:
        """That put has ended."""
        self._putting[name] -= 1
        if not self._putting[name]:
            del self._putting[name]

    def add(self, kept: Kept) -> None:
        """It is there, in place of what was there before."""
        former = self._kept.get(kept.name)
        if former is not None:
            self._remove(former)
        self._kept[kept.name] = kept
        self._owned.setdefault(kept.owner, {})[kept.name] = None
        self._markers += kept.marker
        if kept.expires < float("inf"):
            self._schedule(kept, kept.expires)
        if len(self) > MANY and self._sweeping is None:
            self._sweeping = self._wiring.operations.spawn(self._sweep())

    def take_back(self, kept: Kept) -> None:
        """It was put after its caller had given up."""
        if kept.name not in self._kept and kept.name not in self._putting:
            kept.expires = self._wiring.loop.time()
            self.add(kept)

    # --- deleting ---------------------------------------------------------------------------------

    def _schedule(self, kept: Kept, when: float) -> None:
        deadlines = self._wiring.operations.deadlines
        if kept.token is not None:
            deadlines.discard(kept.token)
        kept.token = deadlines.add(when, lambda: self._over(kept))

    def _over(self, kept: Kept) -> None:
        kept.token = None
        self._due[kept.name] = None
        if self._expiring is None:
            self._expiring = self._wiring.operations.spawn(self._expire())

    async def _expire(self) -> None:
        """Delete what is due, many at a time."""
        try:
            while self._due:
                names = list(islice(self._due, TOGETHER))
                for name in names:
                    del self._due[name]
                await self._delete([self._kept[name] for name in names if name in self._kept])
        finally:
            self._expiring = None

    async def _delete(self, due: list[Kept]) -> int:
        """One try for each of them; what stays is tried again later. How many there were."""
        now = self._wiring.loop.time()
        free = []
        for kept in due:
            if kept.name in self._putting or kept.name in self._ending:
                self._schedule(kept, now + AGAIN_SECONDS)
            else:
                free.append(kept)
        own = [kept for kept in free if kept.marker]
        others = [kept for kept in free if not kept.marker]
        there = 0
        for group, force in ((others, False), (own, True)):
            if group:
                there += await self._delete_now(group, force)
        return there

    async def _delete_now(self, group: list[Kept], force: bool) -> int:
        wiring = self._wiring
        over: asyncio.Future[None] = wiring.loop.create_future()
        for kept in group:
            self._ending[kept.name] = over
        there = 0
        try:
            ends = await wiring.store.delete([kept.name for kept in group], own=force)
            for kept, end in zip(group, ends, strict=True):
                there += end is not Gone.ABSENT
                if end is Gone.BUSY:
                    self._later(kept, "a receiver is reading it")
                    continue
                self._remove(kept)
                if end is Gone.DELETED and not kept.marker and kept.began is None:
                    await self._mark(kept)
        except EngineFault as error:
            for kept in group:
                if self._kept.get(kept.name) is kept:
                    self._later(kept, str(error))
        finally:
            for kept in group:
                del self._ending[kept.name]
            over.set_result(None)
        return there

    def _later(self, kept: Kept, why: str) -> None:
        now = self._wiring.loop.time()
        kept.began = kept.began or now
        waited = now - kept.began
        if waited > GIVEN_UP_SECONDS:
            self._remove(kept)
            _log.warning("left in the store", name=kept.name, reason=why)
        else:
            self._schedule(kept, now + min(max(AGAIN_SECONDS, waited), LONGEST_SECONDS))

    async def _mark(self, kept: Kept) -> None:
        """Leave word that it has expired, for a receiver that comes now."""
        wiring = self._wiring
        past = kept.expires <= wiring.loop.time()
        if not past or wiring.foreign or self._markers >= MARKERS:
            return
        frame = bytes_frame(seal(Head(kept.text, 0, [], expires=time.time())))
        try:
            laid = await lay_plain(wiring, frame, kept.owner, wiring.loop.time())
        except TransferError:  # no room in the pool: then nobody is told
            return
        try:
            await wiring.store.put(kept.name, laid.pieces, ttl=MARKER_SECONDS, timeout=1.0)
        except TransferError:
            return
        finally:
            laid.drop()
        marker = Kept(kept.name, kept.text, kept.owner, wiring.loop.time() + MARKER_SECONDS)
        marker.marker = True
        self.add(marker)

    def _remove(self, kept: Kept) -> None:
        if self._kept.get(kept.name) is not kept:
            return
        del self._kept[kept.name]
        owned = self._owned[kept.owner]
        del owned[kept.name]
        if not owned:
            del self._owned[kept.owner]
        self._markers -= kept.marker
        self._due.pop(kept.name, None)
        if kept.token is not None:
            self._wiring.operations.deadlines.discard(kept.token)
            kept.token = None

    # --- the rest ---------------------------------------------------------------------------------

    async def drop(self, owner: str) -> int:
        """Delete what an owner has put; how much of it there still was.

        What is being read then is deleted when it is no longer read, unless its receiver has taken it.

        Cancellation: safe; the deletion goes on.
        """
        mine = [self._kept[name] for name in self._owned.get(owner, ())]
        payloads = [kept for kept in mine if not kept.marker]
        now = self._wiring.loop.time()
        for kept in payloads:
            kept.expires, kept.began = now + 1.0, now  # it leaves no word behind
        return await asyncio.shield(self._wiring.operations.spawn(self._delete(payloads)))

    async def drain(self, deadline: float | None) -> int:
        """Ask until all is fetched; how much is not. Cancellation: safe."""
        loop = self._wiring.loop
        pause = DRAIN_PAUSE
        while True:
            await asyncio.shield(self._wiring.operations.spawn(self._ask()))
            if not len(self) or (deadline is not None and loop.time() + pause > deadline):
                return len(self)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_DRAIN_PAUSE)

    async def _ask(self) -> None:
        """Forget what is not there any more."""
        mine = [kept for kept in self._kept.values() if not kept.marker]
        for start in range(0, len(mine), BATCH):
            group = [kept for kept in mine[start : start + BATCH] if kept.name not in self._putting]
            try:
                there = await self._wiring.store.contains([kept.name for kept in group])
            except EngineFault:
                return  # whoever drains asks again until its time is over
            for kept, found in zip(group, there, strict=True):
                if not found and kept.name not in self._ending:
                    self._remove(kept)

    async def _sweep(self) -> None:
        try:
            while len(self) > MANY:
                before = len(self)
                await self._ask()
                if len(self) > before // 2:
                    await asyncio.sleep(LONGEST_SECONDS)
        finally:
            self._sweeping = None

    async def forget(self) -> None:
        """Delete the words of what has expired: nobody would do so later.

        Raises:
            EngineFault: the store does not answer.
        """
        if self._sweeping is not None:
            self._sweeping.cancel()
        markers = [kept.name for kept in self._kept.values() if kept.marker]
        for start in range(0, len(markers), TOGETHER):
            await self._wiring.store.delete(markers[start : start + TOGETHER], own=True)
