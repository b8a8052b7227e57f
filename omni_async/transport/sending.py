"""The sender's half of a direct transport: codec → pool → rendezvous → engine.

In: values to put, words of receivers. Out: receipts, words to receivers.
Never: frees a slot that a receiver or an engine may still touch.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from functools import partial
from typing import Any

from ..codec import Encoded
from ..errors import (
    ClosedError,
    KeyExists,
    PoolExhausted,
    TransferError,
    TransferTimeout,
)
from ..model import Receipt, TransferKey, Verb
from ..observe.log import get_logger
from ..rendezvous.directory import Entry
from ..rendezvous.outlet import Outlet
from ..rendezvous.payload import Payload
from ..rendezvous.sender import Sender
from .foreign.edges import encoder_of, serves_strangers, speaks_vllm_omni
from .foreign.receivers import ForeignReceivers
from .idle import IdleTrim
from .placing import fill_on, place
from .receivers import Receivers
from .wiring import Wiring

_log = get_logger("omni_async.transport")

CONFIRM_SECONDS = 0.1
"""How long a put waits for word that the last delivery under its key has been made."""
RECALL_SECONDS = 1.0
"""How long a clean-up waits for receivers to give back what they were offered ahead."""
CROWDED = 1 << 20
"""Bytes on their way to one receiver beyond which its streams wait."""
RELIEVED = 64
"""Streams that go on at once when they are: all of them would only find it crowded again."""


class Sending:
    """Serves what is put."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        lends = wiring.engine.verb is not Verb.READ
        self.core = Sender(wiring.options.ttl, lends_memory=lends)
        self.address = ""
        self.receivers = Receivers(wiring, self.core, self.pump)
        self._foreign = ForeignReceivers(wiring, self.core, self.receivers.channels, self.pump)
        self._abroad = speaks_vllm_omni(wiring.options)
        self._encode = encoder_of(wiring.options)
        self._expiry: asyncio.TimerHandle | None = None
        self._idle = IdleTrim(wiring.loop, wiring.pool)
        self._drained: list[asyncio.Future[None]] = []
        self._unsettled: list[asyncio.Future[None]] = []
        """Puts that wait for word of a claim."""
        self._crowded: dict[int, OrderedDict[Outlet, None]] = {}
        """Streams that wait until less is on its way to their receiver."""
        self._closed = False
        self._reason = ""

    async def open(self) -> None:
        """Bind the sender's address."""
        wiring = self._wiring
        self._listener = await wiring.channels.listen(wiring.endpoint, wiring.hello, self.receivers)
        self.address = self._listener.address
        if serves_strangers(wiring.engine):
            self._listener.on_stranger = self._foreign.heard

    async def put(
        self,
        where: TransferKey,
        value: Any,
        owner: str,
        consumers: int,
        limit: float | None,
        chunk: Encoded | None = None,
    ) -> Receipt:
        """Encode, place and offer.

        Args:
            chunk: (of a stream) the value, encoded already; it lives for as long as its stream wants it.
        """
        wiring, core = self._wiring, self.core
        now = wiring.loop.time()
        deadline = None if limit is None else now + limit
        if core.directory.get(where) is not None:
            await self._make_way(where, deadline)
        encoded = self._encode(value) if chunk is None else chunk
        try:
            payload = await place(wiring, encoded, owner, deadline)
        except TransferError as error:
            text = f"put of {where.key!r} on {where.edge}: {error}"
            if isinstance(error, PoolExhausted):
                text += f"; waited {wiring.loop.time() - now:.1f} s{self.receivers.holders()}"
            raise _located(error, text, wiring.where(where)) from error.__cause__
        try:
            if core.directory.get(where) is not None:
                await self._make_way(where, deadline)
            if self._closed:
                raise ClosedError(f"transport {wiring.endpoint} was closed during the put")
            if self._abroad:
                self._foreign.own(payload)
            until = wiring.loop.time() if chunk is None else math.inf
            core.put(where, payload, owner, consumers, until)
        except BaseException:
            payload.drop()
            raise
        self.pump()
        if self._expiry is None:
            self._set_expiry()
        self._idle.used()
        if payload.filling is not None:
            await self._fill(where, payload)
        return Receipt(
            encoded.nbytes,
            {
                "source_host": self._listener.host or self.address,
                "source_port": self._listener.port,
                "data_size": encoded.nbytes,
                "is_fast_path": encoded.fast,
            },
        )

    async def _fill(self, where: TransferKey, payload: Payload) -> None:
        """Copy the rest of what is offered already. Cancelled, it is taken back unless it was claimed."""
        try:
            await fill_on(self._wiring, payload.filling)
        except BaseException:
            entry = self.core.directory.get(where)
            if entry is not None and entry.payload is payload and not entry.touched:
                self.core.drop(where)
                self.pump()
            raise
        payload.filling = None  # else it tells whoever pulls it later that it is not there

    async def _make_way(self, where: TransferKey, deadline: float | None) -> None:
        """Wait until what was put under the key before may be replaced, or is gone.

        An offer made ahead is recalled: a get that begins after this put must not find the old one. A
        claim is given a moment: the receiver's get may have returned before its word is here.

        Raises:
            KeyExists: the claim stands.
            TransferTimeout: the receiver did not answer.
        """
        loop = self._wiring.loop
        patience: float | None = None
        while (entry := self.core.directory.get(where)) is not None:
            until = deadline
            if entry.touched:
                if patience is None:
                    patience = loop.time() + CONFIRM_SECONDS
                until = patience if deadline is None else min(patience, deadline)
            elif entry.ahead is not None:
                self.core.recall(entry)
                self.pump()
            else:
                return
            if await self._settled(until):
                continue
            self.receivers.poll()  # a loop that was late finds the word and the end of time at once
            if self.core.directory.get(where) is not entry:
                continue
            if entry.touched:
                raise self._exists(where)
            if entry.ahead is not None:
                raise self._kept(where, entry)

    def _kept(self, where: TransferKey, entry: Entry) -> TransferTimeout:
        channel = self.receivers.channels.get(entry.ahead[0]) if entry.ahead else None
        peer = channel.name if channel is not None else "a receiver that has gone"
        return TransferTimeout(
            f"put of {where.key!r} on {where.edge}: {peer} was offered what was put under this key "
            "before, and does not give it back",
            phase="recalling an offer",
            **self._wiring.where(where, peer),
        )

    async def _settled(self, deadline: float | None) -> bool:
        """Wait for the next word of a receiver about a payload; ``False`` when none came in time."""
        loop = self._wiring.loop
        if deadline is not None and loop.time() >= deadline:
            return False
        waiter = loop.create_future()
        self._unsettled.append(waiter)
        timer = None if deadline is None else loop.call_at(deadline, _give_up, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._unsettled:
                self._unsettled.remove(waiter)
        return deadline is None or loop.time() < deadline

    def _exists(self, where: TransferKey) -> KeyExists:
        return KeyExists(
            f"put of {where.key!r} on {where.edge}: a receiver has claimed the payload that was put "
            "under this key before; use another key, or wait for its last delivery",
            **self._wiring.where(where),
        )

    def open_stream(self, where: TransferKey, window: int) -> Outlet | None:
        """Begin a stream; ``None`` while another writer has one open under this key.

        Raises:
            ClosedError: the transport is closed.
        """
        self.check_open()
        outlet = self.core.streams.open(where, window)
        self.pump()
        if self._expiry is None:
            self._set_expiry()
        return outlet

    def crowded(self, outlet: Outlet) -> bool:
        """Whether too much is on its way to its reader's process; it is stirred when that is over."""
        if outlet.ref is None:
            return False
        peer = outlet.ref[0]
        channel = self.receivers.channels.get(peer)
        if channel is None or channel.queued <= CROWDED:
            return False
        waiting = self._crowded.get(peer)
        if waiting is None:
            waiting = self._crowded[peer] = OrderedDict()
            channel.when_written(partial(self._relieved, peer))
        waiting[outlet] = None
        return True

    def _relieved(self, peer: int) -> None:
        waiting = self._crowded[peer]
        for _ in range(min(RELIEVED, len(waiting))):
            self.core.streams.stirred.append(waiting.popitem(last=False)[0])
        channel = self.receivers.channels.get(peer)
        if waiting and channel is not None:
            channel.when_written(partial(self._relieved, peer))
        else:
            del self._crowded[peer]
        self.pump()

    def check_open(self) -> None:
        """Raises: ClosedError: the transport is closed."""
        if self._closed:
            raise ClosedError(f"transport {self._wiring.endpoint} is closed")

    def pump(self) -> None:
        """Send what the core has to say and begin what it has to write."""
        core = self.core
        streams = core.streams
        if streams.obsolete:
            for key in streams.obsolete:
                core.drop(key)
            streams.obsolete.clear()
        if core.outbox:
            for peer, message in core.outbox:
                channel = self.receivers.channels.get(peer)
                if channel is not None:
                    channel.send(message)
            core.outbox.clear()
        if core.writes:
            for write in core.writes:
                self.receivers.begin(write)
            core.writes.clear()
        if streams.stirred:
            stirred, streams.stirred = streams.stirred, []
            for outlet in stirred:
                outlet.stir()
        if self._unsettled:
            for settled in self._unsettled:
                _give_up(settled)
            self._unsettled.clear()
        if self._drained and not self._left:
            for waiter in self._drained:
                _give_up(waiter)
            self._drained.clear()

    # --- time -------------------------------------------------------------------------------------

    def _set_expiry(self) -> None:
        self._expiry = None
        if not self._closed and (len(self.core.directory) or len(self.core.streams)):
            ttl = self._wiring.options.ttl
            when = self.core.directory.next_expiry()
            if when is None:  # all are claimed, or streams' own; some may come back
                when = self._wiring.loop.time() + ttl
            ended = self.core.streams.oldest()
            if ended is not None:
                when = min(when, ended + ttl)
            self._expiry = self._wiring.loop.call_at(when, self._expire)

    def _expire(self) -> None:
        count = self.core.expire(self._wiring.loop.time())
        if count:
            _log.warning(
                "unclaimed payloads expired",
                count=count,
                seconds=self._wiring.options.buffer_ttl_seconds,
            )
        self.pump()
        self._set_expiry()

    async def drain(self, deadline: float | None) -> int:
        """Wait until nothing is on offer; returns how much still is."""
        loop = self._wiring.loop
        if self._left:
            waiter = loop.create_future()
            self._drained.append(waiter)
            timer = None
            if deadline is not None:
                timer = loop.call_at(deadline, _give_up, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
        return self._left

    @property
    def _left(self) -> int:
        """Payloads and ended streams that nobody has taken."""
        return len(self.core.directory) + self.core.streams.unread

    async def cleanup(self, owner: str) -> int:
        """Drop what ``owner`` has on offer, when offers made ahead have been given back."""
        deadline = self._wiring.loop.time() + RECALL_SECONDS
        while lent := [e for e in self.core.directory.owned_by(owner) if e.ahead is not None]:
            for entry in lent:
                self.core.recall(entry)
            self.pump()
            if not await self._settled(deadline):
                break
        count = self.core.cleanup(owner)
        self.pump()
        return count

    def close(self, reason: str) -> int:
        """Drop what is on offer and end all lines; returns how many payloads nobody had fetched."""
        if self._closed:
            return 0
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._idle.close()
        self._reason = reason
        self._foreign.close()
        self.receivers.poll()
        count = self.core.streams.close(reason)
        self.pump()  # what was filed for them is no payload that nobody fetched
        count += self.core.close(peers_read=self._peers_read)
        self.pump()
        self._listener.close()
        if not self._peers_read:
            self.receivers.close(reason)
        return count

    @property
    def _peers_read(self) -> bool:
        return self._wiring.engine.verb is Verb.READ

    async def settle(self, timeout: float) -> None:
        """Wait for engine operations under way: their slots are theirs until then."""
        deadline = self._wiring.loop.time() + timeout
        try:
            while self._peers_read and self.core.directory.refs():
                if not await self._settled(deadline):
                    break
        finally:
            self.receivers.close(self._reason)
        await self._foreign.settle(timeout)
        await self.receivers.settle(timeout)

    def abandon(self) -> None:
        """Wait for nothing."""
        self.receivers.close(self._reason)
        self.receivers.abandon()
        self._foreign.abandon()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _located(error: TransferError, text: str, where: dict[str, Any]) -> TransferError:
    """The pool knows sizes, not keys: say whose put it was."""
    for name, value in where.items():
        setattr(error, name, value)
    error.args = (text,)
    return error
