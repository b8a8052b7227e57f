"""The receiver's half of an edge from vLLM-Omni: its sender is asked, and writes into our slots.

In: keys to get. Out: deliveries, as from any sender.
Never: takes a length from metadata: the sender is asked for it, because it writes what it has, however
much a pull told it to.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from ...errors import (
    ClosedError,
    DecodeError,
    EngineFault,
    KeyNotFound,
    ProtocolError,
    TransferCancelled,
)
from ...interop.vllm_omni import words
from ...model import TransferKey
from ...rendezvous.completions import CompletionRegistry
from ..delivery import Delivery
from ..limits import ASK_SECONDS, DEFAULT, Timeout, move_limit
from ..senders import Senders
from ..waiting import Waiting, Waits
from ..wiring import Wiring
from .landing import REFUSED, Landing
from .sender import ForeignSender
from .taking import prepare, room_for, take


class ForeignReceiving:
    """One :class:`ForeignSender` for each address that was asked."""

    streams: frozenset[Any] = frozenset()
    """There are none on that wire."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._senders: dict[str, ForeignSender] = {}
        self._addresses = Senders(wiring)
        self._completions = CompletionRegistry(wiring.loop)
        self._waits = Waits(wiring.loop)
        self._ops = itertools.count(1)

    @property
    def parked(self) -> int:
        return sum(sender.parked for sender in self._senders.values())

    @property
    def in_flight(self) -> int:
        return sum(len(sender.landings) for sender in self._senders.values())

    def update_sender(self, host: str, port: int, rank: int | None) -> None:
        self._addresses.update(host, port, rank)

    def expect(self, stage: str, rank: int, replica: int) -> None:
        self._addresses.expect(stage, rank, replica)

    async def get(
        self,
        where: TransferKey,
        metadata: Mapping[str, Any] | None,
        timeout: Timeout,
        limit: float | None,
        raw: bool,
        copy: bool | None,
        device: Any,
    ) -> Delivery:
        """One get, from the first query to the delivery."""
        wiring = self._wiring
        sender = self._sender(where, metadata)
        if len(wiring.drops):
            wiring.drops.drain()
        once = limit == 0.0
        began, limit = wiring.loop.time(), ASK_SECONDS if once else limit
        waiting = Waiting(self._waits, sender, where, next(self._ops))
        landing: Landing | None = None
        try:
            while landing is None:
                waiting.allow(began, limit)
                found = await waiting.answer(sender.find(waiting.op, where, once=once))
                if found is REFUSED:  # it was being written for a get that was given up
                    continue
                if timeout is DEFAULT:
                    waiting.allow(wiring.loop.time(), move_limit(found.data_size))
                landing = await self._land(waiting, found, once)
            delivery = await take(
                wiring,
                where.key,
                landing.lease,
                landing.info,
                raw=raw,
                copy=copy,
                device=device,
            )
            sender.landings.taken(waiting.op)
            return delivery
        except BaseException as error:
            ended = isinstance(error, (TransferCancelled, ClosedError, DecodeError))
            sender.landings.give_up(waiting.op, keep=not ended)
            raise
        finally:
            sender.forget(waiting.op, where)

    async def _land(
        self, waiting: Waiting[ForeignSender], found: words.Info | Landing, once: bool
    ) -> Landing | None:
        """Have it written; ``None`` when somebody else was faster.

        Raises:
            KeyNotFound: the same, where it is asked only ``once``.
            EngineFault: it was not written, and is still there.
        """
        sender, where = waiting.link, waiting.where
        if isinstance(found, Landing):
            return found
        if not found.data_size:
            raise ProtocolError(f"{sender.peer} offers a payload of no bytes", peer=sender.peer)
        lease = await self._wiring.pool.lease(
            room_for(found), deadline=waiting.deadline, owner=where.key, findable=False
        )
        prepare(lease, found)
        answer = await waiting.answer(sender.pull(waiting.op, where, lease, found))
        if isinstance(answer, Landing):
            return answer
        try:
            again = await waiting.answer(sender.find(waiting.op, where, once=True))
        except KeyNotFound:
            if once:
                raise
            return None
        if isinstance(again, Landing):
            return again
        raise EngineFault(
            f"{waiting.text}: the sender's engine could not write {found.data_size} bytes; "
            f"{sender.describe()}",
            status=words.ERROR.decode(),
            **self._wiring.where(where, sender.peer),
        )

    def cleanup(self, owner: str) -> int:
        """Wake the waiting gets of a key of that name, and drop what has landed for none."""
        kept = sum(sender.landings.clean_up(owner) for sender in self._senders.values())
        return kept + self._waits.cancel(owner)

    # --- the end ----------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Waiting gets end with ``ClosedError``; slots that are written to stay the senders'."""
        self._completions.close(ClosedError(reason))
        self._waits.deadlines.close()
        for sender in self._senders.values():
            sender.close()

    async def settle(self, timeout: float) -> None:
        """Wait for writes under way; access of those that do not end is ended where that can be."""
        try:
            await asyncio.sleep(0)  # gets that were ended give up their slots
            writes = [task for s in self._senders.values() for task in s.landings.under_way]
            if writes:
                await asyncio.wait(writes, timeout=timeout)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Wait for nothing."""
        for sender in self._senders.values():
            sender.landings.end()

    def _sender(self, where: TransferKey, metadata: Mapping[str, Any] | None) -> ForeignSender:
        address = self._addresses.address_of(where, metadata)
        sender = self._senders.get(address)
        if sender is None:
            sender = ForeignSender(self._wiring, address, self._completions)
            self._senders[address] = sender
        return sender
