"""A transport over a store.

In: a backend and its validated options. Out: a wired Transport.
Never: leaves a part open when opening another one failed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from typing import Any

from .._aio.executor import OwnedExecutor
from .._aio.finish import finish
from ..abc import Options, Store, StoreBackend, StoreOptions
from ..errors import UsageError
from ..model import Endpoint, Health, Receipt, Role, TransferKey
from ..observe.log import get_logger
from ..pool import ManagedBuffer, checked_limit
from .arguments import checked_owner, stage_name
from .delivery import Delivery
from .idle import IdleTrim
from .limits import DEFAULT, Timeout, put_limit
from .pooled import buffer_of, pool_of
from .stored.fetching import Fetching
from .stored.keeping import Keeping
from .stored.operations import Operations
from .stored.wiring import StoreWiring
from .streams import ChunkReader, ChunkWriter
from .streams.keyed import KeyedStreams
from .wired import WiredTransport, drop_queue

_log = get_logger("omni_async.transport")

SETTLE_SECONDS = 2.0
"""How long closing waits for calls to the store."""


_senders: set[tuple[str, str, Endpoint]] = set()
"""Who is a sender in this process. Those of others nobody knows."""


class StoreTransport(WiredTransport[StoreWiring]):
    """codec → pool → store, and back by return value."""

    _operations = "calls to the store that have not ended"

    def __init__(
        self,
        backend: StoreBackend,
        store: Store,
        options: StoreOptions,
        endpoint: Endpoint,
        role: Role,
        linger: float,
    ) -> None:
        super().__init__(endpoint, role, backend.capabilities(options), linger)
        self._place = (backend.name, store.address, endpoint)
        if role == "sender":
            if self._place in _senders:
                raise UsageError(
                    f"this process has a sender {endpoint} at {store.address} already; close it first, or "
                    "use another stage, rank, replica or namespace"
                )
            _senders.add(self._place)
        self._wiring = wiring = self._wire(backend, store, options)
        self._keeping = Keeping(wiring) if role == "sender" else None
        self._fetching = Fetching(wiring) if role == "receiver" else None
        self._streams = KeyedStreams(self)
        self._idle = IdleTrim(wiring.loop, wiring.pool)

    def _wire(self, backend: StoreBackend, store: Store, options: StoreOptions) -> StoreWiring:
        loop = asyncio.get_running_loop()
        limit = checked_limit(options.memory_pool_size)
        pool = pool_of(store, backend.memory(options, self.role), limit)
        return StoreWiring(
            loop=loop,
            backend=backend.name,
            endpoint=self.endpoint,
            options=options,
            store=store,
            pool=pool,
            drops=drop_queue(loop),
            executor=OwnedExecutor(f"omni-async-{self.endpoint.stage}"),
            operations=Operations(loop),
        )

    # --- data -------------------------------------------------------------------------------------

    def _put(
        self, where: TransferKey, value: Any, owner: str, consumers: int, limit: float | None
    ) -> Coroutine[Any, Any, Receipt]:
        assert self._keeping is not None
        self._idle.used()
        return self._keeping.put(where, value, owner, consumers, limit)

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
        assert self._fetching is not None
        self._idle.used()
        own = self._wiring.options.offer_seconds
        if timeout is DEFAULT and own is not None:
            limit = None if math.isinf(own) else own
        return self._fetching.get(where, timeout, limit, raw, copy, device)

    def writer(self, where: TransferKey, window: int) -> ChunkWriter:
        self._refuse_streams(where)
        return self._streams.writer(where, window)

    def reader(
        self, where: TransferKey, window: int, metadata: Mapping[str, Any] | None
    ) -> ChunkReader:
        self._refuse_streams(where)
        return self._streams.reader(where, window, metadata)

    def fate(self, where: TransferKey) -> asyncio.Future[bool] | None:
        return None if self._keeping is None else self._keeping.fate(where)

    def _refuse_streams(self, where: TransferKey) -> None:
        if self._wiring.foreign:
            raise UsageError(
                f"stream {where.key!r} on {where.edge}: vLLM-Omni knows no streams; put each chunk under a "
                "key of its own, such as 'request_0_chunk', as its own chunk adapter does"
            )

    async def allocate(self, nbytes: int, *, timeout: Timeout = DEFAULT) -> ManagedBuffer:
        self._check("sender")
        return await buffer_of(self._wiring.pool, self._wiring.drops, nbytes, put_limit(timeout))

    # --- the rest ---------------------------------------------------------------------------------

    def update_sender_info(self, host: str, port: int, rank: int | None = None) -> None:
        """The key is the meeting point: where its sender is makes no difference, but for its rank."""
        self._check("receiver")

    def expect_sender(self, from_stage: str | int, rank: int, replica: int) -> None:
        self._check("receiver")
        assert self._fetching is not None
        self._fetching.names.expect(stage_name(from_stage), rank, replica)

    async def cleanup(self, request_id: str) -> int:
        self._check()
        checked_owner(request_id)
        count = self._streams.cleanup(request_id)
        if self._keeping is not None:
            count += await self._keeping.cleanup(request_id)
        if self._fetching is not None:
            count += self._fetching.cleanup(request_id)
        return count

    def health(self) -> Health:
        parked = len(self._fetching.lookups) if self._fetching is not None else 0
        told: dict[str, Any] = {"protocol": None, **self._wiring.store.health()}
        return self._health(
            host=told.pop("host", None),
            # The store has a pool of its own; what the seed documents call so it does not tell.
            pool_device="cpu",
            in_flight=self._half.moving,
            parked=parked,
            streams=self.meters.snapshot(self._streams.flowing()),
            extra=told,
        )

    # --- closing ----------------------------------------------------------------------------------

    async def _drained(self, deadline: float | None) -> int:
        assert self._keeping is not None
        return await self._keeping.drain(deadline)

    async def _stay(self, deadline: float) -> None:
        await self._streams.settle()
        if self._keeping is not None:
            self._say_left(await self._keeping.drain(deadline))

    def _say_left(self, left: int) -> None:
        stage = self.endpoint.stage
        if left and self._wiring.store.outlives:
            _log.info("payloads stay in the store", count=left, stage=stage)
        elif left:
            _log.warning("payloads were dropped that nobody had fetched", count=left, stage=stage)

    @property
    def _half(self) -> Keeping | Fetching:
        half = self._keeping or self._fetching
        assert half is not None
        return half

    def _end(self, reason: str) -> None:
        self._streams.close(reason)
        self._half.close(reason)

    async def _settle(self) -> None:
        await finish(self._calls_ended())

    async def _calls_ended(self) -> None:
        wiring = self._wiring
        try:
            last = wiring.operations.spawn(self._half.settle())
            await asyncio.wait([last], timeout=SETTLE_SECONDS)
            await wiring.operations.settle(SETTLE_SECONDS)
        finally:
            await wiring.store.close()

    def _abandon(self) -> None:
        self._wiring.store.abort()

    def _release_rest(self) -> None:
        _senders.discard(self._place)
        self._idle.close()


async def open_store(
    backend: StoreBackend, options: Options, endpoint: Endpoint, role: Role, linger: float
) -> StoreTransport:
    """A transport whose client has reached its server. Raises and cancellation: as for ``store``."""
    assert isinstance(options, StoreOptions)
    store = await backend.store(options, role)
    try:
        return StoreTransport(backend, store, options, endpoint, role, linger)
    except BaseException:
        store.abort()
        raise
