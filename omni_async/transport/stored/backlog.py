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
from .head import Head, seal, tail
from .laying import lay_plain
from .operations import Operation
from .wiring import StoreWiring

_log = get_logger("omni_async.transport")

ASKED = 1000
"""Names in one question."""
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

    __slots__ = (
        "began",
        "expires",
        "fate",
        "marker",
        "name",
        "owner",
        "quiet",
        "stays",
        "text",
        "token",
    )

    def __init__(self, name: str, text: str, owner: str, expires: float) -> None:
        self.name = name
        self.text = text
        self.owner = owner
        self.expires = expires
        """On the loop's clock."""
        self.quiet = False
        """It leaves no word behind when it goes."""
        self.marker = False
        """Only word that it has expired."""
        self.token: int | None = None
        self.began: float | None = None
        """When it was first tried to delete it."""
        self.fate: asyncio.Future[bool] | None = None
        """Where its caller has left: whether it is there for its receiver."""
        self.stays = False
        """It is not taken back then."""


class Backlog:
    """The payloads of one sender, by name and by owner."""

    def __init__(self, wiring: StoreWiring) -> None:
        self._wiring = wiring
        self._kept: dict[str, Kept] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self._putting: Counter[str] = Counter()
        self._ending: dict[str, asyncio.Future[None]] = {}
        """Names that are being deleted: nothing is put there meanwhile."""
        self._lingering: dict[str, asyncio.Future[None]] = {}
        """Names under which a put may still succeed whose caller has left."""
        self._open: dict[str, Kept] = {}
        """The last of these puts, until it is known what became of it."""
        self._closed = False
        self._due: dict[str, None] = {}
        self._expiring: asyncio.Future[None] | None = None
        self._sweeping: asyncio.Future[None] | None = None
        self._markers = 0

    def __len__(self) -> int:
        return len(self._kept) - self._markers

    # --- for puts ---------------------------------------------------------------------------------

    async def claim(self, operation: Operation, name: str) -> None:
        """A put of that name begins; to be ended by :meth:`release`. Cancellation: safe."""
        while (over := self._ending.get(name) or self._lingering.get(name)) is not None:
            await operation.answer(over)
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

    def linger(self, kept: Kept, call: asyncio.Future[None]) -> None:
        """The caller of a put has left it to itself.

        Nothing else is put under its name until it has ended: else the older value might come to lie
        over the newer one. If it succeeds, it is taken back.
        """
        name, loop = kept.name, self._wiring.loop
        before, over = self._lingering.get(name), loop.create_future()
        self._lingering[name] = over
        kept.fate = loop.create_future()
        self._open[name] = kept

        def ended(_: object) -> None:
            if self._lingering.get(name) is over:
                del self._lingering[name]
            over.set_result(None)
            self._take_back(kept, not call.cancelled() and call.exception() is None)

        def next_ended(_: object) -> None:
            call.add_done_callback(ended)

        if before is None:
            call.add_done_callback(ended)
        else:
            before.add_done_callback(next_ended)

    def fate(self, name: str) -> asyncio.Future[bool] | None:
        """Of a put whose caller has just left it to itself: it is not taken back, and told whether it is there."""
        kept = self._open.get(name)
        if kept is None:
            return None
        kept.stays = True
        return kept.fate

    def _take_back(self, kept: Kept, there: bool) -> None:
        there = there and not self._closed
        now = self._wiring.loop.time()
        if there and kept.stays:
            kept.expires = now + self._wiring.options.ttl
            self.add(kept)
        elif there and kept.name not in self._kept and kept.name not in self._putting:
            kept.expires, kept.quiet = now, True
            self.add(kept)
        self._settle(kept, there and kept.stays)

    def _settle(self, kept: Kept, there: bool) -> None:
        if kept.fate is not None and not kept.fate.done():
            kept.fate.set_result(there)
        if self._open.get(kept.name) is kept:
            del self._open[kept.name]

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
            ends = await self._ends([kept.name for kept in group], force)
            for kept, end in zip(group, ends, strict=True):
                there += end is not Gone.ABSENT
                if end is Gone.BUSY:
                    self._later(kept, "a receiver is reading it")
                    continue
                self._remove(kept)
                if end is Gone.DELETED and not kept.marker and not kept.quiet:
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

    async def _ends(self, names: list[str], own: bool) -> list[Gone]:
        store = self._wiring.store
        if store.tells_absent:
            return await store.delete(names, own=own)
        # Else what was fetched long ago would be taken for something that expires now.
        there = await store.contains(names)
        left = [name for name, found in zip(names, there, strict=True) if found]
        ends = iter(await store.delete(left, own=own) if left else ())
        return [next(ends) if found else Gone.ABSENT for found in there]

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
        head = Head(kept.text, 0, [], expires=time.time())
        frame = bytes_frame(seal(head) + tail(head))
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
        payloads = [kept for kept in mine if not kept.marker and not kept.quiet]
        now = self._wiring.loop.time()
        for kept in payloads:
            kept.quiet, kept.began = True, now
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
        """Forget what is not there any more.

        What is being deleted is left out: its deletion tells, and a store may take a question for reading.
        """
        mine = [kept for kept in self._kept.values() if not kept.marker and kept.began is None]
        for start in range(0, len(mine), ASKED):
            group = [kept for kept in mine[start : start + ASKED] if kept.name not in self._putting]
            if not group:
                continue
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

    def close(self) -> None:
        """Take nothing back any more: it stays for its receivers."""
        self._closed = True
        for kept in list(self._open.values()):
            self._settle(kept, False)

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
