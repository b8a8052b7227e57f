"""Waiting: one get, from its Want to its delivery, under a time limit.

In: futures of answers. Out: the words that answer, or the errors that they mean.
Never: cancels anything; whoever gives a get up does.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Protocol, TypeVar

from .._aio.deadline import Deadlines
from ..errors import (
    EngineFault,
    KeyNotFound,
    OmniAsyncError,
    PeerLost,
    ProtocolError,
    TransferCancelled,
    TransferTimeout,
)
from ..model import TransferKey
from ..rendezvous.messages import Fail, FailCode
from ..rendezvous.receiver import Phase
from .wiring import Wiring


class Line(Protocol):
    """The way to one sender, as far as those who wait for it know it."""

    @property
    def wiring(self) -> Wiring: ...

    @property
    def peer(self) -> str: ...

    def describe(self) -> str:
        """What is known of the sender, for errors."""
        ...

    def phase(self, op: int) -> Phase | None:
        """What an operation waits for."""
        ...


L = TypeVar("L", bound=Line)


class Waits:
    """All gets of one receiver that wait for an answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.deadlines = Deadlines(loop)
        self._by_key: dict[str, dict[Waiting[Any], None]] = {}

    def add(self, waiting: Waiting[Any]) -> None:
        self._by_key.setdefault(waiting.where.key, {})[waiting] = None

    def remove(self, waiting: Waiting[Any]) -> None:
        key = waiting.where.key
        others = self._by_key[key]
        del others[waiting]
        if not others:
            del self._by_key[key]

    def cancel(self, owner: str) -> int:
        """End the gets of a key of that name; how many."""
        return sum(waiting.cancel() for waiting in list(self._by_key.get(owner, ())))


class Waiting(Generic[L]):
    """What one get is about, and how long it may take."""

    __slots__ = ("_future", "_limit", "_waits", "deadline", "link", "op", "where")

    def __init__(self, waits: Waits, link: L, where: TransferKey, op: int) -> None:
        self._waits = waits
        self.link = link
        self.where = where
        self.op = op
        self.deadline: float | None = None
        """On the loop's clock."""
        self._limit: float | None = None
        self._future: asyncio.Future[Any] | None = None

    def allow(self, now: float, limit: float | None) -> None:
        """What follows may take ``limit`` seconds from ``now`` on."""
        self._limit = limit
        self.deadline = None if limit is None else now + limit

    async def answer(self, future: asyncio.Future[Any]) -> Any:
        """The word that answers the operation, or the error that it means.

        Cancellation: safe; the future is cancelled with its waiter.
        """
        waits, token = self._waits, None
        self._future = future
        waits.add(self)
        if self.deadline is not None and not future.done():
            token = waits.deadlines.add(self.deadline, self._expire)
        try:
            word = await future
        finally:
            self._future = None
            waits.remove(self)
            if token is not None:
                waits.deadlines.discard(token)
        if word is None or isinstance(word, (Fail, OmniAsyncError)):
            raise self._failure(word)
        return word

    def _expire(self) -> None:
        phase = self.link.phase(self.op)
        text = phase.value if phase is not None else "ending"
        self._end(
            TransferTimeout(
                f"{self.text} timed out after {self._limit:g} s while {text}; "
                f"{self.link.describe()}",
                phase=text,
                timeout=self._limit,
                **self._fields,
            )
        )

    def cancel(self) -> bool:
        """End it by clean-up; whether it was still waiting."""
        return self._end(
            TransferCancelled(
                f"{self.text} was ended by cleanup", **self.link.wiring.where(self.where)
            )
        )

    def _end(self, error: OmniAsyncError) -> bool:
        """Whoever completes the future later finds it done."""
        future = self._future
        if future is None or future.done():
            return False
        future.set_exception(error)
        future.exception()  # its waiter may be gone by the time it would look
        return True

    @property
    def text(self) -> str:
        """What is done, for errors."""
        return f"get of {self.where.key!r} on {self.where.edge}"

    @property
    def _fields(self) -> dict[str, Any]:
        return self.link.wiring.where(self.where, self.link.peer)

    def lost(self, when: str) -> PeerLost:
        """The sender went away."""
        return PeerLost(
            f"{self.text}: the sender {when}; {self.link.describe()}",
            **self._fields,
        )

    def _failure(self, word: Fail | OmniAsyncError | None) -> OmniAsyncError:
        if word is None:
            return self.lost("went away after it had offered the payload")
        if isinstance(word, ProtocolError):
            return ProtocolError(f"{self.text}: {word}", peer=word.peer)
        if isinstance(word, OmniAsyncError):
            return word
        return _failure(word, self.text, self._fields)


def _failure(fail: Fail, what: str, fields: dict[str, Any]) -> OmniAsyncError:
    detail = f": {fail.text}" if fail.text else ""
    if fail.code is FailCode.NOT_FOUND:
        return KeyNotFound(f"{what}: it is not there now{detail}", **fields)
    if fail.code is FailCode.EXPIRED:
        return KeyNotFound(
            f"{what}: it has expired, nobody fetched it within buffer_ttl_seconds{detail}",
            expired=True,
            **fields,
        )
    if fail.code is FailCode.CANCELLED:
        return TransferCancelled(f"{what} was ended{detail}", **fields)
    if fail.code is FailCode.ENGINE:
        return EngineFault(f"{what}: the sender's engine failed{detail}", **fields)
    if fail.code is FailCode.CLOSED:
        return PeerLost(f"{what}: the sender was closed{detail}", **fields)
    return ProtocolError(f"{what} was refused by the sender{detail}", peer=fields["peer"])
