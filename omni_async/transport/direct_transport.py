"""A transport over an engine between two processes.

In: a backend and its validated options. Out: a wired Transport.
Never: leaves a part open when opening another one failed.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any

from .._aio.executor import OwnedExecutor
from ..abc import DirectBackend, Options
from ..errors import ClosedError, TransferCancelled, UsageError
from ..model import ALIGNMENT, Endpoint, Health, Receipt, Role, TransferKey, Verb
from ..observe.clock import clock_id
from ..observe.log import get_logger
from ..pool import PAGE, ManagedBuffer, checked_limit
from ..rendezvous.messages import WIRE, Hello
from .arguments import checked_owner, stage_name
from .delivery import Delivery
from .foreign.edges import (
    capabilities_of,
    checked_engine,
    no_streams,
    receiving_of,
    speaks_vllm_omni,
)
from .foreign.receiving import ForeignReceiving
from .guests import Guests, close_for_guests
from .limits import DEFAULT, Timeout, put_limit
from .pooled import buffer_of, pool_of
from .receiving import Receiving
from .sending import Sending
from .streams import ChunkReader, ChunkWriter
from .streams.direct_reader import DirectReader
from .streams.direct_writer import DirectWriter
from .wired import WiredTransport, drop_queue
from .wiring import Wiring

_log = get_logger("omni_async.transport")

SETTLE_SECONDS = 5.0
"""How long closing waits for engine operations that cannot be recalled."""


class DirectTransport(WiredTransport[Wiring]):
    """codec → pool → rendezvous → engine, and back by return value."""

    _operations = "engine operations that cannot be recalled"

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
        self._mapped = wiring.engine.verb is Verb.MAP
        self._sending = Sending(wiring) if role == "sender" else None
        self._receiving = receiving_of(wiring) if role == "receiver" else None

    def _wire(self, backend: DirectBackend, options: Options) -> Wiring:
        loop = asyncio.get_running_loop()
        engine = checked_engine(backend.engine(options, self.role), backend.name, options)
        limit = checked_limit(options.memory_pool_size, device=engine.device)
        pool = pool_of(
            engine,
            backend.memory(options, self.role),
            limit,
            alignment=PAGE if engine.verb is Verb.WRITE else ALIGNMENT,
            revoke=engine.revoke,
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
            drops=drop_queue(loop),
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
                self._over()
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

    def health(self) -> Health:
        sending, receiving = self._sending, self._receiving
        if sending is not None:
            parked, in_flight = sending.core.parked, sending.core.directory.claimed
            host: str | None = sending.address
            streams = self.meters.snapshot((o.key, o) for o in sending.core.streams.every())
        else:
            assert receiving is not None
            parked, in_flight, host = receiving.parked, receiving.in_flight, None
            streams = self.meters.snapshot((s.where, s) for s in receiving.streams)
        engine = self._wiring.engine
        return self._health(
            host=host,
            pool_device=engine.device,
            in_flight=in_flight,
            parked=parked,
            streams=streams,
            extra=dict(engine.health()),
        )

    # --- closing ----------------------------------------------------------------------------------

    async def _drained(self, deadline: float | None) -> int:
        assert self._sending is not None
        return await self._sending.drain(deadline)

    async def _stay(self, deadline: float) -> None:
        if self._sending is not None:
            await self._sending.drain(deadline)

    @property
    def _half(self) -> Sending | Receiving | ForeignReceiving:
        half = self._sending or self._receiving
        assert half is not None
        return half

    def _end(self, reason: str) -> None:
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

    async def _settle(self) -> None:
        await self._half.settle(SETTLE_SECONDS)

    def _abandon(self) -> None:
        self._half.abandon()

    def _release_rest(self) -> None:
        self._wiring.engine.close()
