"""Waiting: one get, from its Want to its delivery, under a time limit.

In: futures of answers. Out: the words that answer, or the errors that they mean.
Never: cancels anything; whoever gives a get up does.
"""

from __future__ import annotations

import asyncio
from typing import Any

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
from .link import Link

ByKey = dict[str, dict["asyncio.Future[Any]", TransferKey]]
"""By key: futures of those who wait for an answer."""


class Waiting:
    """What one get is about, and how long it may take.

    Args:
        by_key: where its futures are listed while it waits for them.
    """

    __slots__ = ("_by_key", "_limit", "deadline", "link", "op", "where")

    def __init__(self, by_key: ByKey, link: Link, where: TransferKey, op: int) -> None:
        self._by_key = by_key
        self.link = link
        self.where = where
        self.op = op
        self.deadline: float | None = None
        """On the loop's clock."""
        self._limit: float | None = None

    def allow(self, now: float, limit: float | None) -> None:
        """What follows may take ``limit`` seconds from ``now`` on."""
        self._limit = limit
        self.deadline = None if limit is None else now + limit

    async def answer(self, future: asyncio.Future[Any]) -> Any:
        """The word that answers the operation, or the error that it means.

        Cancellation: safe; the future is cancelled with its waiter.
        """
        key, deadline = self.where.key, self.deadline
        timer = None
        if deadline is not None and not future.done():
            timer = self.link.wiring.loop.call_at(deadline, self._expire, future)
        others = self._by_key.setdefault(key, {})
        others[future] = self.where
        try:
            word = await future
        finally:
            if timer is not None:
                timer.cancel()
            del others[future]
            if not others:
                self._by_key.pop(key, None)
        if word is None or isinstance(word, (Fail, OmniAsyncError)):
            raise self._failure(word)
        return word

    def _expire(self, future: asyncio.Future[Any]) -> None:
        """Whoever completes the future later finds it done."""
        if not future.done():
            phase = self.link.core.phase(self.op)
            text = phase.value if phase is not None else "ending"
            future.set_exception(
                TransferTimeout(
                    f"{self.text} timed out after {self._limit:g} s while {text}; "
                    f"{self.link.describe()}",
                    phase=text,
                    timeout=self._limit,
                    **self._fields,
                )
            )

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
