"""One sender of vLLM-Omni, asked again and again for keys that somebody waits for.

In: keys. Out: what is there under them.
Never: asks about more than a few keys at a time, since it answers one after another.

The other side cannot notify. One timer for all waiting keys asks for those that are due, less often the
longer a key has been waited for.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from typing import Any

from ...errors import ClosedError, KeyNotFound, ProtocolError
from ...interop.vllm_omni import words
from ...model import TransferKey
from ...pool import Lease
from ...rendezvous.completions import CompletionRegistry
from ...rendezvous.messages import Fail, FailCode
from ...rendezvous.receiver import Phase
from ..wiring import Wiring
from .landing import Landing, Landings

QUERIES = 2
"""Queries under way."""
PULLS = 8
"""Pulls under way; a sender there writes four at a time."""
QUERY_SECONDS = 5.0
"""How long an answer to a query is waited for; then it is asked anew."""
SHORTEST, LONGEST = 0.001, 0.05
"""Seconds between two queries for a key, or two attempts to reach the sender."""
SHARE = 0.1
"""Of the time that a key has been waited for: by so much its payload may be noticed late."""


class ForeignSender:
    """The way to it; see :class:`~.waiting.Line`."""

    def __init__(self, wiring: Wiring, address: str, completions: CompletionRegistry) -> None:
        from ...rendezvous.zmq_request import ZmqRequests  # zmq is loaded by who needs it

        self.wiring = wiring
        self.address = address
        self._completions = completions
        self._queries = ZmqRequests(address, QUERIES)
        self.landings = Landings(wiring, ZmqRequests(address, PULLS), completions)
        self._phases: dict[int, Phase] = {}
        self._waiting: dict[TransferKey, dict[int, float]] = {}
        """Operations by key, each since when, the oldest first."""
        self._claims: dict[TransferKey, int] = {}
        """Keys of which an operation was told that they are there: the others wait for its end."""
        self._due: list[tuple[float, int, TransferKey]] = []
        self._order = itertools.count()
        self._scheduled: set[TransferKey] = set()
        """Keys that are in ``_due``, or being asked for."""
        self._asking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = 0.0
        self._not_before = 0.0
        """While it cannot be reached, nobody is asked for before."""
        self._trouble: Exception | None = None
        self._closed = False

    # --- for people -------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self.address

    def describe(self) -> str:
        """What is known of the sender, for errors."""
        trouble = self._trouble or self.landings.trouble
        return f"the sender is vLLM-Omni at {self.address}" + (f" ({trouble})" if trouble else "")

    def phase(self, op: int) -> Phase | None:
        return self._phases.get(op)

    @property
    def parked(self) -> int:
        return sum(map(len, self._waiting.values()))

    # --- operations -------------------------------------------------------------------------------

    def find(self, op: int, where: TransferKey, *, once: bool) -> asyncio.Future[Any]:
        """What is under a key, as soon as there is something, or, ``once``, only if it is there now.

        Answered by Info, by the Landing of a payload that was written for a get that was given up, or
        by what is wrong.
        """
        answer = self._completions.create(op)
        self._unclaim(op, where)  # it asks again
        if self.landings.adopt(op, where):
            self._phases[op] = Phase.PULLED
            self._claims[where] = op
            return answer
        self._phases[op] = Phase.PARKED
        if once:
            self._spawn(self._ask_once(op, where))
            return answer
        now = self.wiring.loop.time()
        self._waiting.setdefault(where, {})[op] = now
        if where not in self._scheduled:
            self._ask_at(now, where)
        return answer

    def pull(
        self, op: int, where: TransferKey, lease: Lease, info: words.Info
    ) -> asyncio.Future[Any]:
        """Have it written into a slot; see :meth:`Landings.pull`."""
        answer = self._completions.create(op)
        self._phases[op] = Phase.PULLED
        self.landings.pull(op, where, lease, info)
        return answer

    def forget(self, op: int, where: TransferKey) -> None:
        """An operation is over, however it went."""
        self._phases.pop(op, None)
        self._unwait(op, where)
        self._unclaim(op, where)
        self._completions.discard(op)

    def _unclaim(self, op: int, where: TransferKey) -> None:
        if self._claims.get(where) == op:
            del self._claims[where]

    def _busy(self, op: int, where: TransferKey) -> bool:
        """Whether another get has the payload of that key."""
        return self._claims.get(where, op) != op or self.landings.busy(where)

    def close(self) -> None:
        """Ask no more; pulls under way go on until :meth:`Landings.end`."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._queries.close()
        self.landings.close()

    # --- asking -----------------------------------------------------------------------------------

    async def _query(self, where: TransferKey) -> words.Info | None:
        """Raises: OSError: no answer. ProtocolError: it makes no sense. ClosedError."""
        body = words.query(where)
        for again in (True, False):
            try:
                return words.found(await asyncio.wait_for(self._queries.ask(body), QUERY_SECONDS))
            except ConnectionResetError:  # a connection that had lain idle is often found dead
                if not again:
                    raise
            except asyncio.TimeoutError:
                break
        raise TimeoutError(f"no answer to a query for {QUERY_SECONDS:g} s")

    async def _ask_once(self, op: int, where: TransferKey) -> None:
        outcome: object
        try:
            asked = self.wiring.loop.time()
            info = await self._query(where)
            if self.landings.ended_since(where, asked):
                asked = self.wiring.loop.time()
                info = await self._query(where)
        except OSError as error:
            outcome = KeyNotFound(
                f"get of {where.key!r} on {where.edge}: no sender answers at {self.address} ({error})",
                **self.wiring.where(where, self.peer),
            )
        except (ProtocolError, ClosedError) as error:
            outcome = error
        else:
            outcome = self._claimed(op, where, info, asked) or Fail(op, FailCode.NOT_FOUND)
        self._resolve(op, outcome)

    def _claimed(
        self, op: int, where: TransferKey, info: words.Info | None, asked: float
    ) -> words.Info | Landing | None:
        """What an operation may have, after the sender's answer to a query of then.

        What it tells of is newer than what has landed for nobody, unless that has landed since: then the
        answer is about a payload that is gone, and the next one may have another length.
        """
        if op not in self._phases or self._busy(op, where):
            return None
        if info is not None and self.landings.ended_since(where, asked):
            return None
        if info is not None:
            self.landings.forget(where)
        found = info or self.landings.kept_for(op, where)
        if found is not None:
            self._claims[where] = op
        return found

    async def _ask_for(self, where: TransferKey) -> None:
        loop = self.wiring.loop
        asked = loop.time()
        try:
            info = await self._query(where)
        except OSError as error:
            self._trouble = error
            self._pause = min(LONGEST, 2 * self._pause or SHORTEST)
            self._not_before = loop.time() + self._pause
        except ClosedError:
            return
        except ProtocolError as error:
            for op in list(self._waiting.get(where, ())):
                self._unwait(op, where)
                self._resolve(op, error)
        else:
            self._trouble, self._pause, self._not_before = None, 0.0, 0.0
            for op in list(self._waiting.get(where, ()))[:1]:
                found = self._claimed(op, where, info, asked)
                if found is not None:
                    self._unwait(op, where)
                    self._resolve(op, found)
        self._scheduled.discard(where)
        if where in self._waiting:
            now = loop.time()
            waited = now - next(iter(self._waiting[where].values()))
            self._ask_at(now + min(LONGEST, max(SHORTEST, SHARE * waited)), where)

    def _resolve(self, op: int, outcome: object) -> None:
        if op in self._phases:
            self._phases[op] = Phase.OFFERED
        self._completions.resolve(op, outcome)

    def _unwait(self, op: int, where: TransferKey) -> None:
        waiting = self._waiting.get(where)
        if waiting is not None:
            waiting.pop(op, None)
            if not waiting:
                del self._waiting[where]

    def _ask_at(self, when: float, where: TransferKey) -> None:
        self._scheduled.add(where)
        heapq.heappush(self._due, (when, next(self._order), where))
        self._tick()

    def _tick(self) -> None:
        """Ask for keys that are due, as many at once as may be."""
        loop = self.wiring.loop
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._due and len(self._asking) < QUERIES and not self._closed:
            when, _, where = self._due[0]
            if where not in self._waiting:
                heapq.heappop(self._due)
                self._scheduled.discard(where)
                continue
            when = max(when, self._not_before)
            if when > loop.time():
                self._timer = loop.call_at(when, self._tick)
                return
            heapq.heappop(self._due)
            self._spawn(self._ask_for(where))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.wiring.loop.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if not self._closed:
            self._tick()
