"""Peers that a decode instance has shaken hands with, so that it asks each rank once.

In: a transfer. Out: where each rank of prefill is that this rank hears from.
Never: asks a rank twice at a time; believes an answer for longer than a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .._aio.tasks import spawn
from ..errors import ClosedError, OmniAsyncError, ProtocolError, UsageError
from ..model import Endpoint
from ..observe.log import get_logger
from ..rendezvous.zmq_address import parsed
from .consumer import KVConsumer
from .control import OwnMetadata, Peer, TransferParams, ask_handshake
from .layout import KVLayout, match
from .plan import sources_of, targets_of
from .sources import Source
from .waiters import failed

BELIEVED = 60.0
"""Seconds; a restarted instance may be another one."""
IDLE = 300.0
"""Seconds after which the line to a rank that was of no use is ended: it may be gone for good."""

Place = tuple[str, int]

_log = get_logger("omni_async.kv")


class KnownPeers:
    """Answers by address.

    Args:
        consumer: whose peers they are.
        backend: what moves the bytes here.
        by_name: whether that finds its peers by their names.
        timeout: seconds that a rank may take to answer.
    """

    def __init__(
        self, consumer: KVConsumer, backend: str, *, by_name: bool, timeout: float
    ) -> None:
        self._consumer = consumer
        self._backend = backend
        self._by_name = by_name
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._asking: dict[Place, tuple[float, asyncio.Task[OwnMetadata]]] = {}
        self._used: dict[Any, tuple[float, Source]] = {}
        """When each rank was of use last."""
        self._declining: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Future[None] = self._loop.create_future()

    async def sources(self, found: TransferParams) -> list[Source]:
        """Where each rank of prefill is that this rank hears from.

        Raises:
            TransferTimeout: one does not answer; ``phase`` is ``handshake``.
            ProtocolError: one is something else than was told, or its caches do not fit; where it could be told,
                it knows as well.
            ClosedError: this side was closed, before or meanwhile.

        Cancellation: safe.
        """
        peer = found.peer
        try:
            ranks = sources_of(self._consumer.layout, peer.tp_size)
        except UsageError as error:
            raise ProtocolError(f"transfer {found.transfer_id!r}: {error}") from None
        places = [peer.handshake_at(rank) for rank in ranks]
        owns = await asyncio.gather(*(self.ask(*place) for place in places))
        sources = [self._source(own, place) for own, place in zip(owns, places, strict=True)]
        self._keep(sources)
        try:
            layouts = [
                self._checked(own, place, peer, rank, found.mode)
                for rank, own, place in zip(ranks, owns, places, strict=True)
            ]
        except ProtocolError as error:
            for place in places:
                self.forget(place)
            self._consumer.decline(  # prefill waits for this side
                found.transfer_id, str(error), source=sources, source_tp=peer.tp_size
            )
            raise
        if found.mode == "read" and not self._consumer.layout.tp_rank:
            self._let_go(found, layouts[0])
        return sources

    def _let_go(self, found: TransferParams, theirs: KVLayout) -> None:
        """Ranks of prefill that hold copies of heads from which no rank hears would keep their blocks until
        their time is over: in this mode they do not know who reads."""
        tp = self._consumer.layout.tp_size
        spare = [
            rank
            for rank in range(theirs.tp_size)
            if not targets_of(msgspec.structs.replace(theirs, tp_rank=rank), tp)
        ]
        if spare:
            spawn(self._decline(found, spare), self._declining)

    async def _decline(self, found: TransferParams, ranks: Sequence[int]) -> None:
        places = [found.peer.handshake_at(rank) for rank in ranks]
        try:
            owns = await asyncio.gather(*(self.ask(*place) for place in places))
            sources = [self._source(own, place) for own, place in zip(owns, places, strict=True)]
        except OmniAsyncError as error:
            _log.warning("ranks that nobody reads from are not told", reason=str(error))
            return
        self._keep(sources)
        self._consumer.decline(
            found.transfer_id,
            "other ranks have the same heads",
            source=sources,
            source_tp=found.peer.tp_size,
            ranks=ranks,
        )

    # --- asking -----------------------------------------------------------------------------------

    async def ask(self, host: str, port: int) -> OwnMetadata:
        """Who answers there.

        Raises:
            TransferTimeout: nobody does; ``phase`` is ``handshake``.
            ProtocolError: it is no rank of this library.
            ClosedError: this side was closed, before or meanwhile.

        Cancellation: safe.
        """
        self._raise_if_closed()
        place = host, port
        since, task = self._asking.get(place, (0.0, None))
        if task is None or (task.done() and self._loop.time() - since > BELIEVED):
            task = self._loop.create_task(self._ask(place))
            task.add_done_callback(lambda done: self._asked(place, done))
            self._asking[place] = self._loop.time(), task
        if not task.done():  # others may wait for it too: whoever gives up leaves it alone
            either: set[asyncio.Future[Any]] = {task, self._closing}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            self._raise_if_closed()
        try:
            return task.result()
        except OmniAsyncError as error:
            raise failed(error) from None

    def _raise_if_closed(self) -> None:
        if self._closing.done():
            raise ClosedError("the instance was closed while it shook hands")

    def _asked(self, place: Place, task: asyncio.Task[OwnMetadata]) -> None:
        if task.cancelled() or task.exception() is not None:
            self.forget(place)

    async def _ask(self, place: Place) -> OwnMetadata:
        metadata, _ = await ask_handshake(*place, timeout=self._timeout)
        if metadata.omni_async is None:
            name = f"{metadata.engine_id} at {place[0]}:{place[1]}"
            raise ProtocolError(
                f"{name} is no instance of this library, and nothing here reads its descriptor "
                f"({len(metadata.agent_metadata)} bytes)",
                peer=name,
            )
        return metadata.omni_async

    def forget(self, place: Place) -> None:
        """Ask anew the next time."""
        self._asking.pop(place, None)

    def close(self) -> None:
        """Ask no more; whoever waits for an answer is told. Idempotent."""
        if not self._closing.done():
            self._closing.set_result(None)
        for _, task in list(self._asking.values()):
            task.cancel()
        self._asking.clear()
        for declining in self._declining:
            declining.cancel()

    # --- answers ----------------------------------------------------------------------------------

    def _source(self, own: OwnMetadata, place: Place) -> Source:
        if self._by_name and own.endpoint is not None:
            return Endpoint(*own.endpoint)
        if not self._by_name and own.transport:
            try:
                where = parsed(own.transport)
            except UsageError as error:
                raise ProtocolError(f"{place[0]}:{place[1]} tells no address: {error}") from None
            return {"source_host": where.host, "source_port": where.port}
        raise ProtocolError(
            f"{place[0]}:{place[1]} gives no caches that {self._backend} could carry: it is no prefill "
            f"instance, or one over {own.backend or 'nothing'}"
        )

    def _checked(
        self, own: OwnMetadata, place: Place, peer: Peer, rank: int, mode: str
    ) -> KVLayout:
        name = f"rank {rank} of {peer.address.engine_id} at {place[0]}:{place[1]}"
        dp_rank = peer.dp_rank % peer.dp_size_local if peer.dp_size_local else peer.dp_rank
        wanted = (self._backend, peer.tp_size, rank, dp_rank)
        told = (own.backend, own.tp_size, own.tp_rank, own.dp_rank)
        for what, here, there in zip(
            ("backend", "tp_size", "tp_rank", "dp_rank"), wanted, told, strict=True
        ):
            if here != there:
                raise ProtocolError(f"{what} of {name} is {there!r}, not {here!r}", peer=name)
        if mode not in own.modes:
            raise ProtocolError(
                f"{name} gives caches in mode {' or '.join(own.modes)}, and {mode} was asked for",
                peer=name,
            )
        try:
            theirs = msgspec.convert(own.layout, KVLayout)
        except msgspec.ValidationError as error:
            raise ProtocolError(
                f"the layout of {name} makes no sense: {error}", peer=name
            ) from None
        match(theirs, self._consumer.layout, peer=name)
        return theirs

    def _keep(self, sources: Sequence[Source]) -> None:
        """These are of use; who has not been for long is left."""
        now = self._loop.time()
        for source in sources:
            name = tuple(source.items()) if isinstance(source, Mapping) else source
            self._used[name] = now, source
        for name, (last, source) in list(self._used.items()):
            if now - last > IDLE:
                self._consumer.leave(source)
                del self._used[name]
