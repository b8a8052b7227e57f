"""A transport over an engine between two processes.

In: a backend and its validated options. Out: a wired Transport.
Never: leaves a part open when opening another one failed.
"""

from __future__ import annotations

import asyncio
import os
import uuid
import warnings
from collections.abc import Coroutine, Mapping
from typing import Any

from .._aio.executor import OwnedExecutor
from ..abc import Block, DirectBackend, Options
from ..codec import register_buffer
from ..errors import ClosedError, TransferCancelled, UsageError
from ..model import ALIGNMENT, Endpoint, Health, Receipt, Region, Role, TransferKey, Verb
from ..observe.clock import clock_id
from ..observe.log import get_logger
from ..pool import PAGE, DropQueue, ManagedBuffer, Pool, checked_limit
from ..rendezvous.messages import WIRE, Hello
from .arguments import checked_owner, stage_name
from .base import Transport
from .delivery import Delivery
from .foreign.edges import (
    capabilities_of,
    checked_engine,
    no_streams,
    receiving_of,
    speaks_vllm_omni,
)
from .guests import Guests, close_for_guests
from .limits import DEFAULT, Timeout, put_limit
from .pooled import buffer_of
from .receiving import Receiving
from .sending import Sending
from .streams import ChunkReader, ChunkWriter
from .streams.direct_reader import DirectReader
from .streams.direct_writer import DirectWriter
from .wiring import Wiring

_log = get_logger("omni_async.transport")

register_buffer(ManagedBuffer)

SEGMENT = 64 << 20
"""Bytes an engine registers at a time."""
SETTLE_SECONDS = 5.0
"""How long closing waits for engine operations that cannot be recalled."""


class DirectTransport(Transport):
    """codec → pool → rendezvous → engine, and back by return value."""

    def __init__(
        self,
        backend: DirectBackend,
        options: Options,
        endpoint: Endpoint,
        role: Role,
        linger: float,
    ) -> None:
        facts = capabilities_of(backend.capabilities(options), options)
        super().__init__(endpoint, role, facts, linger)
        self._wiring = wiring = self._wire(backend, options)
        self._sending = Sending(wiring) if role == "sender" else None
        self._receiving = receiving_of(wiring) if role == "receiver" else None

    def _wire(self, backend: DirectBackend, options: Options) -> Wiring:
        loop = asyncio.get_running_loop()
        engine = checked_engine(backend.engine(options, self.role), backend.name, options)

        def register(block: Block) -> Region:
            return engine.register(block.address, block.nbytes, fd=block.fd)

        limit = checked_limit(options.memory_pool_size, device=engine.device)
        pool = Pool(
            limit=limit,
            # Without pinning it is one segment, whose pages come only when they are touched. Where an
            # engine pins what it registers: small segments, and no page behind its back.
            segment_nbytes=SEGMENT if engine.pins else limit,
            discard=not engine.pins,
            alignment=PAGE if engine.verb is Verb.WRITE else ALIGNMENT,
            revoke=engine.revoke,
            source=backend.memory(options, self.role),
            register=register,
            unregister=engine.unregister,
        )
        name, stage, rank, replica = self.endpoint
        hello = Hello(
            WIRE,
            uuid.uuid4().hex,
            self.role,
            name,
            stage,
            rank,
            replica,
            os.getpid(),
            backend.name,
            engine.verb.value,
            engine.describe(),
            clock_id(),
            engine.protocol,
        )
        return Wiring(
            loop=loop,
            backend=backend.name,
            endpoint=self.endpoint,
            role=self.role,
            options=options,
            hello=hello,
            channels=backend.channels(options),
            engine=engine,
            pool=pool,
            drops=DropQueue(loop, _let_go),
            executor=OwnedExecutor(f"omni-async-{stage}"),
            counters=self.counters,
            meters=self.meters,
        )

    async def open(self) -> None:
        """Bind what has to be bound.

        Cancellation: safe.
        """
        if self._sending is not None:
            try:
                await self._sending.open()
            except BaseException:
                self._closing = self._wiring.loop.create_future()
                self._closing.set_result(None)
                self._release_parts()
                raise

    # --- data -------------------------------------------------------------------------------------

    # These two hand over the half's own coroutine: one of their own would cost each payload a microsecond.

    def _put(
        self, where: TransferKey, value: Any, owner: str, consumers: int, limit: float | None
    ) -> Coroutine[Any, Any, Receipt]:
        assert self._sending is not None
        return self._sending.put(where, value, owner, consumers, limit)

    def _get(
        self,
        where: TransferKey,
        metadata: Mapping[str, Any] | None,
        timeout: Timeout,
        limit: float | None,
        raw: bool,
        copy: bool | None,
        device: Any,
    ) -> Coroutine[Any, Any, Delivery]:
        assert self._receiving is not None
        return self._receiving.get(where, metadata, timeout, limit, raw, copy, device)

    def writer(self, where: TransferKey, window: int) -> ChunkWriter:
        assert self._sending is not None
        if speaks_vllm_omni(self._wiring.options):
            raise no_streams(where)
        return DirectWriter(self._wiring, self._sending, self._bound, self._breath, where, window)

    def reader(
        self, where: TransferKey, window: int, metadata: Mapping[str, Any] | None
    ) -> ChunkReader:
        assert self._receiving is not None
        if not isinstance(self._receiving, Receiving):
            raise no_streams(where)
        return DirectReader(self._wiring, self._receiving, self._bound, where, window, metadata)

    async def allocate(self, nbytes: int, *, timeout: Timeout = DEFAULT) -> ManagedBuffer:
        self._check("sender")
        if self._wiring.on_device:
            raise UsageError(
                f"the pool is on {self._wiring.engine.device}, and buffers are host memory; put tensors "
                "of that device instead"
            )
        return await buffer_of(self._wiring.pool, self._wiring.drops, nbytes, put_limit(timeout))

    # --- the rest ---------------------------------------------------------------------------------

    @property
    def guests(self) -> Guests:
        self._check()
        if self._sending is not None and not speaks_vllm_omni(self._wiring.options):
            return Guests(self._wiring, self._sending.receivers, None)
        if isinstance(self._receiving, Receiving):
            return Guests(self._wiring, self._receiving, self._receiving)
        raise UsageError(
            f"{self._wiring.backend}: the wire of vLLM-Omni ('peer: vllm-omni') carries payloads only"
        )

    def update_sender_info(self, host: str, port: int, rank: int | None = None) -> None:
        self._check("receiver")
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 0):
            raise UsageError(f"rank must be an int of at least 0 or None, not {rank!r}")
        assert self._receiving is not None
        self._receiving.update_sender(host, port, rank)

    def expect_sender(self, from_stage: str | int, rank: int, replica: int) -> None:
        self._check("receiver")
        assert self._receiving is not None
        self._receiving.expect(stage_name(from_stage), rank, replica)

    async def cleanup(self, request_id: str) -> int:
        self._check()
        checked_owner(request_id)
        error = TransferCancelled(f"{request_id!r} was ended by cleanup", key=request_id)
        count = self._wiring.pool.cancel_waiters(request_id, error)
        if self._sending is not None:
            count += await self._sending.cleanup(request_id)
        if self._receiving is not None:
            count += self._receiving.cleanup(request_id)
        return count

    async def drain(self, timeout: float | None = None) -> int:
        self._check()
        if self._sending is None:
            return 0
        limit = put_limit(timeout)
        deadline = None if limit is None else self._wiring.loop.time() + limit
        left = await self._sending.drain(deadline)
        if self._closing is not None:  # dropped is not fetched
            raise ClosedError(f"transport {self.endpoint} was closed while it drained")
        return left

    def health(self) -> Health:
        wiring = self._wiring
        sending, receiving = self._sending, self._receiving
        if sending is not None:
            parked, in_flight = sending.core.parked, sending.core.directory.claimed
            host: str | None = sending.address
            streams = self.meters.snapshot((o.key, o) for o in sending.core.streams.every())
        else:
            assert receiving is not None
            parked, in_flight, host = receiving.parked, receiving.in_flight, None
            streams = self.meters.snapshot((s.where, s) for s in receiving.streams)
        return Health(
            status="closed" if self.closed else "healthy",
            backend=wiring.backend,
            host=host,
            pool_device=wiring.engine.device,
            pool_size=wiring.pool.limit,
            **self.counters.as_dict(),
            in_flight=in_flight,
            parked=parked,
            pool_used=wiring.pool.used,
            quarantined=wiring.pool.quarantined,
            streams=streams,
            extra=dict(wiring.engine.health()),
        )

    # --- closing ----------------------------------------------------------------------------------

    async def _close(self, linger: float) -> None:
        self._bound.check()
        try:
            if linger and self._sending is not None and self._closing is None:
                await self._sending.drain(self._wiring.loop.time() + linger)
        finally:  # a cancellation ends the lingering, not the closing
            await self._shut()

    async def _shut(self) -> None:
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = self._wiring.loop.create_future()
        try:
            self._end_lines()
            half = self._sending or self._receiving
            assert half is not None
            await half.settle(SETTLE_SECONDS)
        finally:
            self._closing.set_result(None)
            self._release_parts()

    def abort(self) -> None:
        self._bound.check()
        if self._closing is None:
            self._closing = self._wiring.loop.create_future()
            self._end_lines()
            half = self._sending or self._receiving
            assert half is not None
            half.abandon()
            self._closing.set_result(None)
            self._release_parts()

    def _end_lines(self) -> None:
        reason = f"transport {self.endpoint} was closed"
        close_for_guests(self._wiring, reason)
        if self._sending is not None:
            dropped = self._sending.close(reason)
            if dropped:
                _log.warning(
                    "closed with unclaimed payloads", count=dropped, stage=self.endpoint.stage
                )
        if self._receiving is not None:
            self._receiving.close(reason)
        self._wiring.pool.cancel_waiters(None, ClosedError(reason))

    def _release_parts(self) -> None:
        wiring = self._wiring
        wiring.drops.close()
        stuck = wiring.pool.close(mapped=wiring.engine.verb is Verb.MAP)
        wiring.executor.close()
        wiring.engine.close()
        if stuck and wiring.engine.verb.value != "map":
            warnings.warn(
                f"transport {self.endpoint} was closed with {stuck} slot(s) under engine operations "
                "that cannot be recalled; their memory stays",
                ResourceWarning,
                stacklevel=2,
            )

    def __del__(self, _warn: Any = warnings.warn) -> None:
        opened = hasattr(self, "_wiring")  # else there was never anything to close
        if opened and self._closing is None:
            _warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)


def _let_go(token: Any) -> None:
    token()
