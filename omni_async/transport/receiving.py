"""The receiver's half of a direct transport: rendezvous → engine → codec.

In: keys to get, words of senders. Out: deliveries.
Never: touches a sender's memory after it told the sender that it would not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from ..errors import (
    ClosedError,
    DecodeError,
    KeyNotFound,
    OmniAsyncError,
    TransferCancelled,
)
from ..model import Endpoint, Region, TransferKey, Verb
from ..observe.streams import Flowing
from ..rendezvous.completions import CompletionRegistry
from ..rendezvous.messages import Regions
from ..rendezvous.stream_readers import Inlet
from .delivery import Delivery
from .guests import OpenLine
from .limits import ASK_SECONDS, DEFAULT, Timeout, move_limit
from .link import Link
from .senders import Senders
from .taking import take
from .waiting import Waiting, Waits
from .wiring import Wiring


class OpenStream(Flowing, Protocol):
    """A reader, as far as its transport knows it."""

    @property
    def key(self) -> str: ...

    @property
    def where(self) -> TransferKey: ...

    def fail(self, error: OmniAsyncError) -> bool:
        """End it; whether it was going on."""
        ...

    def close(self, reason: str) -> Iterable[asyncio.Future[Any]]:
        """End it; what is still on its way to its end."""
        ...


class Receiving:
    """One link for each sender endpoint this receiver has asked."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._links: dict[str, Link] = {}
        self._by_stage: dict[str, Link] = {}
        """Where gets without metadata go."""
        self._senders = Senders(wiring)
        self._completions = CompletionRegistry(wiring.loop)
        wiring.pool.on_grow = self.announce
        wiring.pool.on_shrink = self.withdraw
        self._waits = Waits(wiring.loop)
        self.streams: set[OpenStream] = set()
        self._ending: list[asyncio.Future[Any]] = []
        self._closed = False
        self._reason = ""

    @property
    def parked(self) -> int:
        return sum(link.core.parked for link in self._links.values())

    @property
    def in_flight(self) -> int:
        return sum(len(link.core) for link in self._links.values()) - self.parked

    def update_sender(self, host: str, port: int, rank: int | None) -> None:
        self._senders.update(host, port, rank)
        self._by_stage.clear()

    def expect(self, stage: str, rank: int, replica: int) -> None:
        self._senders.expect(stage, rank, replica)
        self._by_stage.pop(stage, None)

    async def get(
        self,
        where: TransferKey,
        metadata: Mapping[str, Any] | None,
        timeout: Timeout,
        limit: float | None,
        raw: bool,
        copy: bool | None,
        device: Any,
        link: Link | None = None,
    ) -> Delivery:
        """One get from Want to delivery, over ``link`` or the one that key and metadata mean."""
        wiring = self._wiring
        if link is None:
            link = None if metadata else self._by_stage.get(where.from_stage)
            if link is None:
                link = self._link(where, metadata)
            link.poll()
        began = wiring.loop.time()
        if len(wiring.drops):
            wiring.drops.drain()  # their words travel with the Want
        if limit == 0.0:
            await self._ask_once(link, where)
            limit = ASK_SECONDS
        core = link.core
        op = core.want(where, park=timeout != 0)
        waiting = Waiting(self._waits, link, where, op)
        waiting.allow(began, limit)
        try:
            offer = core.offered(op)
            if offer is None:
                future = self._completions.create(op)
                link.pump()
                offer = await waiting.answer(future)
            if timeout is DEFAULT:
                waiting.allow(wiring.loop.time(), move_limit(offer.nbytes))
            return await take(waiting, offer, raw=raw, copy=copy, device=device)
        except BaseException as error:
            self._completions.discard(op)
            if isinstance(error, DecodeError) and error.missing is None:
                core.consume(op, holding=False)  # nobody can ever read it
            link.give_up(op)
            raise

    def open_stream(
        self,
        where: TransferKey,
        window: int,
        metadata: Mapping[str, Any] | None,
        stream: OpenStream,
    ) -> tuple[Link, Inlet]:
        """Ask for a stream; ``stream`` is told when this receiver is closed or cleans up.

        Raises:
            ClosedError: the transport is closed.
        """
        if self._closed:
            raise ClosedError(f"transport {self._wiring.endpoint} is closed")
        link = self._link(where, metadata)
        inlet = link.core.streams.open(where, window)
        self.streams.add(stream)
        link.pump()
        return link, inlet

    def forget_stream(self, stream: OpenStream) -> None:
        """It was left. Idempotent."""
        self.streams.discard(stream)

    async def _ask_once(self, link: Link, where: TransferKey) -> None:
        """With ``timeout=0`` nobody is waited for: without a line there is nothing."""
        if link.dialer.channel is not None:
            return
        link.asking += 1
        try:
            channel = await link.dialer.attempt()
        finally:
            link.asking -= 1
            link.rest()
        if channel is None:
            raise KeyNotFound(
                f"get of {where.key!r} on {where.edge}: no sender listens at {link.address}"
                f"{link.trouble()}",
                **self._wiring.where(where, link.peer),
            )

    def _link(self, where: TransferKey, metadata: Mapping[str, Any] | None) -> Link:
        link = self._link_to(self._senders.address_of(where, metadata))
        if not metadata:
            self._by_stage[where.from_stage] = link
        return link

    def _link_to(self, address: str) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(self._wiring, address, self._completions)
            link.on_idle = self._idle
        return link

    def _idle(self, link: Link) -> None:
        """Its sender has gone: nobody dials there for ever, unless gets go there by default."""
        if link not in self._by_stage.values() and self._links.get(link.address) is link:
            del self._links[link.address]
            link.close(self._reason)

    def announce(self, region: Region) -> None:
        """There is a new region here, where senders write."""
        if self._peers_write:
            for link in self._links.values():
                link.announce(*self._wiring.regions([region.id]))

    def withdraw(self, region: Region) -> None:
        """A region is no more."""
        if self._peers_write:
            for link in self._links.values():
                link.announce(Regions([], [region.id]), [])

    # --- guests -----------------------------------------------------------------------------------

    def guest_lines(self) -> Iterator[OpenLine]:
        lines = (link.guest_line for link in self._links.values())
        return (line for line in lines if line is not None)

    def keep_line(self, endpoint: Endpoint | None, metadata: Mapping[str, Any] | None) -> str:
        """Dial a sender, and go on until :meth:`leave_line`; see :class:`.guests.Guests`."""
        if self._closed:
            raise ClosedError(f"transport {self._wiring.endpoint} is closed")
        address = None
        if endpoint is not None and not metadata:
            address = self._wiring.channels.address_of(endpoint)
        if address is None:
            stage = "" if endpoint is None else endpoint.stage
            where = TransferKey(stage, self._wiring.endpoint.stage, "")
            address = self._senders.address_of(where, metadata)
        self._link_to(address).kept += 1
        return address

    def leave_line(self, address: str) -> None:
        link = self._links.get(address)
        if link is not None:
            link.kept -= 1
            link.rest()

    def cleanup(self, owner: str) -> int:
        """Wake the waiting gets and end the streams of a key of that name."""
        error = TransferCancelled(f"{owner!r} was ended by cleanup", key=owner)
        ended = [s.fail(error) for s in list(self.streams) if s.key == owner]
        return self._waits.cancel(owner) + sum(ended)

    async def settle(self, timeout: float) -> None:
        """Wait for reads and writes under way: their slots are theirs until then."""
        reads = [task for link in self._links.values() for task in link.reads]
        under_way = [*reads, *self._ending]
        self._ending.clear()  # their results are memory
        try:
            if under_way:
                await asyncio.wait(under_way, timeout=timeout)
            if self._peers_write:
                await asyncio.sleep(0)  # gets that were ended give up what was to be written
                await self._writes_ended(timeout)
        finally:
            self._end_lines()

    async def _writes_ended(self, timeout: float) -> None:
        writes = [asyncio.ensure_future(link.writes_ended()) for link in self._links.values()]
        try:
            if writes:
                await asyncio.wait(writes, timeout=timeout)
        finally:
            for write in writes:
                write.cancel()

    def abandon(self) -> None:
        """Wait for nothing: reads under way keep what they need themselves."""
        self._ending.clear()
        self._end_lines()

    def close(self, reason: str) -> None:
        """End all links; waiting gets end with ``ClosedError``. Living views keep their memory."""
        self._closed = True
        self._completions.close(ClosedError(reason))
        self._waits.deadlines.close()
        for stream in list(self.streams):
            self._ending += stream.close(reason)
        self.streams.clear()
        self._reason = reason
        if not self._peers_write:
            self._end_lines()

    @property
    def _peers_write(self) -> bool:
        return self._wiring.engine.verb is Verb.WRITE

    def _end_lines(self) -> None:
        for link in self._links.values():
            link.close(self._reason)
