"""KVInstance: one rank of a prefill or a decode instance, behind a proxy.

In: configuration, caches, requests' ``kv_transfer_params``. Out: transfers to await, params to answer.
Never: serves HTTP, computes, allocates blocks; registers before it can be asked.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, TypeVar

from .. import registry
from .._aio.executor import OwnedExecutor
from ..abc.options import AddressedOptions
from ..errors import ClosedError, ProtocolError, UsageError
from ..model import ConnectorSpec, Endpoint, Role
from ..rendezvous.zmq_address import HostPort
from ..rendezvous.zmq_hosts import local_places
from ..transport import Transport, open_transport
from .consumer import KVConsumer
from .control import (
    FORGOTTEN,
    AgentMetadata,
    HandshakePort,
    KVConfig,
    Registered,
    Registration,
    Side,
    TransferParams,
    ZmqAddress,
    clashes,
    http_address,
    load_kv_config,
    open_handshake_port,
    parse_params,
    port_of,
)
from .control.metadata import Layers
from .control.options import EXTRA, Mistake, is_trusted, refusal
from .end import KVEnd
from .introduction import introduced
from .known_peers import KnownPeers
from .layout import KVLayout
from .memory import KVMemory
from .plan import targets_of
from .prefill import Prefill, checked_source
from .producer import KVProducer
from .progress import KVProgress

End = TypeVar("End", bound=KVEnd)

_ENDS: dict[str, Role] = {"P": "sender", "D": "receiver"}
_SIDES: dict[Side, str] = {"prefill": "P", "decode": "D"}


class KVInstance:
    """What a serving engine awaits, on each of its ranks.

    A prefill instance's words go over its notify port, where decode instances dial; its handshake port tells
    them who it is. Rank 0 registers both ports' bases at the proxy.

    Args:
        config: ``kv_transfer_config``, as vLLM takes it: an object, its JSON, or loaded.
        layout: of this rank's caches; ``tp_size`` and ``tp_rank`` of the instance are in it.
        caches: one item a layer, or a :class:`KVMemory`; see :class:`KVEnd`.
        dp_rank, dp_size: which replica of the instance this is, and of how many.
        namespace: of names on this host, for backends that find peers by name.

    Raises:
        ConfigError: the configuration is wrong; ``mistakes`` has all of it.
        UsageError: on entering: a port is taken, names by whom; caches or a backend that do not fit.
        BackendUnavailable: on entering: what moves the bytes cannot run here.

    ::

        async with KVInstance(config, layout, caches) as instance:
            ...serve HTTP...
            progress = await instance.decode(body["kv_transfer_params"], request_id, block_ids=blocks)
            await progress.all()
    """

    def __init__(
        self,
        config: KVConfig | Mapping[str, Any] | str,
        layout: KVLayout,
        caches: KVMemory | Any,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        namespace: str | None = None,
    ) -> None:
        if not isinstance(config, KVConfig):
            config = load_kv_config(config, os.environ)
        self.config = config
        self.options = config.options
        self.layout = layout
        self.dp_rank, self.dp_size = dp_rank, dp_size
        self.registrations: list[Registration] = []
        """One for each role, on the instance's first rank."""
        self.producer: KVProducer | None = None
        self.consumer: KVConsumer | None = None
        self.transports: list[Transport] = []
        self.handshake: HandshakePort
        self.address: ZmqAddress
        """What peers are told: bases of ports."""
        self._caches = caches
        self._namespace = namespace
        self._stack = AsyncExitStack()
        self._peers: KnownPeers | None = None
        self._jobs: weakref.WeakValueDictionary[str, Prefill] = weakref.WeakValueDictionary()
        """(mode ``read``) By transfer, for the producer does not know of them before they are sealed."""
        self._entered = False
        self._opened = False
        self._closed = False
        self._check_ranks()

    @property
    def mode(self) -> str:
        """``write`` or ``read``, by configuration."""
        return "read" if self.options.read_mode else "write"

    # --- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> KVInstance:
        if self._entered:
            raise UsageError("this KVInstance was entered before; make another one")
        self._entered = True
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        self._opened = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        await self._stack.aclose()

    async def withdraw(self) -> None:
        """Beat no more, and return when the proxy sends nothing any more. To be called before leaving, where
        other instances take over: requests that come until then are served.

        Cancellation: safe; beats are over.
        """
        beating = [registration.aclose() for registration in self.registrations]
        self.registrations = []
        for ending in beating:
            await ending
        if beating:
            await asyncio.sleep(FORGOTTEN)

    async def _open(self, stack: AsyncExitStack) -> None:
        options, layout = self.options, self.layout
        advertised = await _advertised(options.host_ip)
        self.address = ZmqAddress(advertised, options.handshake_port, options.notify_port)
        listening = options.bind_ip or advertised
        for role in self.config.roles:
            transport = await stack.enter_async_context(
                open_transport(
                    self._spec(role, listening),
                    role=_ENDS[role],
                    stage=self.address.engine_id,
                    namespace=self._namespace,
                    rank=layout.tp_rank,
                    replica=self.dp_rank,
                    linger=0.0,
                )
            )
            self.transports.append(transport)
            await self._open_end(stack, role, transport)
        self.handshake = await open_handshake_port(
            listening, self._port(options.handshake_port), *self._introduction()
        )
        stack.callback(self.handshake.close)
        if options.proxy_ip and not layout.tp_rank and not self.dp_rank:
            self._register(stack)

    async def _open_end(self, stack: AsyncExitStack, role: str, transport: Transport) -> None:
        options = self.options
        if role == "P":
            producer = KVProducer(
                transport,
                self.layout,
                self._caches,
                transfer_timeout=options.transfer_timeout,
                defer_timeout=options.defer_timeout,
            )
            self.producer = await stack.enter_async_context(producer)
            return
        consumer = KVConsumer(
            transport,
            self.layout,
            self._caches,
            transfer_timeout=options.transfer_timeout,
            defer_timeout=options.defer_timeout,
        )
        self.consumer = await stack.enter_async_context(consumer)
        name = options.connector[0]
        self._peers = KnownPeers(
            self.consumer,
            name,
            by_name=not _addressed(name),
            timeout=options.handshake_timeout,
        )
        stack.callback(self._peers.close)

    def _register(self, stack: AsyncExitStack) -> None:
        options = self.options
        assert options.http_port is not None  # the options see to that
        for role in self.config.roles:
            record = Registered(
                type=role,
                http_address=http_address(self.address.host, options.http_port),
                zmq_address=str(self.address),
                dp_size=self.dp_size,
                tp_size=self.layout.tp_size,
                transfer_mode=options.mode,
            )
            beating = Registration(
                record, options.proxy_ip, options.proxy_ping_port, options.ping_interval
            )
            self.registrations.append(beating)
            stack.push_async_callback(beating.aclose)

    def _spec(self, role: str, host: str) -> ConnectorSpec:
        name, extra = self.options.connector
        if _addressed(name):
            extra["host"] = host
            if role == "P":
                extra["zmq_port"] = self._port(self.options.notify_port)
        return ConnectorSpec(name, extra)

    def _introduction(self) -> tuple[AgentMetadata, Layers]:
        name = self.options.connector[0]
        if self.producer is None:
            return introduced(self.address, self.layout, (self.dp_rank, self.dp_size), name)
        where: HostPort | Endpoint = self.producer.guests.endpoint
        if _addressed(name):
            where = HostPort(self.address.host, self._port(self.options.notify_port))
        dp = self.dp_rank, self.dp_size
        return introduced(self.address, self.layout, dp, name, where, (self.mode,))

    def _port(self, base: int) -> int:
        return port_of(base, self.dp_rank, self.layout.tp_rank, self.layout.tp_size)

    def _check_ranks(self) -> None:
        if not 0 <= self.dp_rank < self.dp_size:
            raise UsageError(f"there is no dp_rank {self.dp_rank} where dp_size is {self.dp_size}")
        options = self.options
        bases = {"handshake_port": options.handshake_port, "notify_port": options.notify_port}
        single = {} if options.http_port is None else {"http_port": options.http_port}
        wrong = clashes(bases, self.dp_size, self.layout.tp_size, single)
        if wrong:
            raise refusal([Mistake(f"{EXTRA}.{option}", text) for option, text in wrong])

    # --- requests ---------------------------------------------------------------------------------

    def params(
        self, kv_transfer_params: Mapping[str, Any] | None, request_id: str = ""
    ) -> TransferParams | None:
        """What a request asks of this instance; see :func:`parse_params`.

        Raises:
            ProtocolError: as there; or it asks for the other role, or names a host that is not trusted.
        """
        found = parse_params(kv_transfer_params, request_id, own_tp_size=self.layout.tp_size)
        if found is not None and _SIDES[found.side] not in self.config.roles:
            raise ProtocolError(
                f"transfer {found.transfer_id!r} asks for {found.side}, and this instance does not do that"
            )
        if found is not None and found.side == "decode":
            host, _ = found.peer.handshake_at(0)
            if not is_trusted(host, self.options.trusted_remote_hosts):
                raise ProtocolError(
                    f"transfer {found.transfer_id!r} names {host!r}, which is none of trusted_remote_hosts"
                )
        return found

    async def prefill(
        self,
        kv_transfer_params: Mapping[str, Any] | None,
        request_id: str = "",
        *,
        block_ids: Sequence[int] | None = None,
        tokens: int | None = None,
    ) -> Prefill | None:
        """Begin a request whose cache a decode instance gets.

        Args:
            kv_transfer_params: of the request.
            request_id: of the request, as the proxy has it (``X-Request-Id``) or the engine.
            block_ids: in the order of the tokens; they can be told later, by :meth:`Prefill.assign`.
            tokens: how many there are; without it the blocks are full.

        Returns:
            ``None`` for a request that no other instance has part in.

        Raises:
            ProtocolError: the params say too little, or ask for decode; heads that cannot be shared out to
                decode's ranks.
            UsageError: blocks that do not exist, or a transfer that is under way already; this instance was
                not entered.
            ClosedError: this instance was closed.

        All of them in both modes here, before the model computes.

        Cancellation: safe; it is given up.
        """
        found = self.params(kv_transfer_params, request_id)
        if found is None:
            return None
        if found.side != "prefill":
            raise ProtocolError(f"transfer {found.transfer_id!r} asks for decode, not for prefill")
        producer, writes = self._open_end_of(self.producer), not self.options.read_mode
        try:
            wanted = bool(targets_of(self.layout, found.peer.tp_size))
        except UsageError as error:
            raise ProtocolError(f"transfer {found.transfer_id!r}: {error}") from None
        blocks = None
        if block_ids is not None:
            blocks = checked_source(self.layout, block_ids, tokens, writes=writes)
        session = None
        if writes:
            if wanted:
                session = await producer.write_to(
                    found.transfer_id, blocks, tokens=tokens, timeout=0
                )
        else:
            other = self._jobs.get(found.transfer_id)
            if found.transfer_id in producer.core.sessions or (other and other.kept_back):
                raise UsageError(
                    f"transfer {found.transfer_id!r} is under way already; abort that first"
                )
        job = Prefill(
            producer,
            found,
            self.address,
            (self.dp_rank, self.dp_size),
            session,
            blocks,
            tokens,
            writes=writes,
            wanted=wanted,
        )
        if not writes:
            self._jobs[found.transfer_id] = job
        return job

    async def decode(
        self,
        kv_transfer_params: Mapping[str, Any] | None,
        request_id: str = "",
        *,
        block_ids: Sequence[int],
    ) -> KVProgress | None:
        """Ask for a request's cache into blocks of this rank; returns as soon as that is under way.

        The first request from an instance shakes hands with it.

        Args:
            kv_transfer_params: of the request.
            request_id: of the request, as the proxy has it (``X-Request-Id``) or the engine.
            block_ids: in the order of the tokens, as many as hold the prompt.

        Returns:
            ``None`` for a request that no other instance has part in: compute it.

        Raises:
            ProtocolError: the params say too little; the peer is something else than was told; caches do
                not fit, names both values. A request must not be answered from these blocks then.
            TransferTimeout: the peer does not answer the handshake.
            UsageError: blocks that do not exist, or into which something else may still land; this instance
                was not entered.
            ClosedError: this instance was closed, before or while it shook hands.

        Cancellation: safe; it is given up.
        """
        found = self.params(kv_transfer_params, request_id)
        if found is None:
            return None
        if found.side != "decode":
            raise ProtocolError(f"transfer {found.transfer_id!r} asks for prefill, not for decode")
        consumer = self._open_end_of(self.consumer)
        if found.block_ids == ():
            raise ProtocolError(
                f"transfer {found.transfer_id!r}: the prefill instance has kept no block"
            )
        consumer.check(found.transfer_id, block_ids)
        assert self._peers is not None  # it came with the consumer
        sources = await self._peers.sources(found)
        return await consumer.receive(
            found.transfer_id,
            block_ids,
            mode=found.mode,
            source=sources,
            source_tp=found.peer.tp_size,
        )

    async def decline(
        self,
        kv_transfer_params: Mapping[str, Any] | None,
        request_id: str = "",
        *,
        reason: str = "the decode instance has no use for it",
    ) -> None:
        """Tell prefill that a request will not be decoded here, so that it frees its blocks now.

        Raises:
            ProtocolError: as :meth:`decode`.
            TransferTimeout: the peer does not answer the handshake.
            UsageError: this instance was not entered.
            ClosedError: it was closed, before or while it shook hands.

        Cancellation: safe; then it may not be told.
        """
        found = self.params(kv_transfer_params, request_id)
        if found is None or found.side != "decode":
            return
        consumer = self._open_end_of(self.consumer)
        assert self._peers is not None  # it came with the consumer
        sources = await self._peers.sources(found)
        consumer.decline(found.transfer_id, reason, source=sources, source_tp=found.peer.tp_size)

    def _open_end_of(self, end: End | None) -> End:
        """That of a role which this instance has, as its params were checked.

        Raises:
            UsageError: the instance was not entered.
            ClosedError: it was closed, or what is below.
        """
        if not self._opened or end is None:
            raise UsageError("enter the KVInstance first, by 'async with'")
        if self._closed or end.closed:
            raise ClosedError(f"the KVInstance {self.address.engine_id} is closed")
        return end


def _addressed(backend: str) -> bool:
    """Whether peers dial a port of this host, rather than a name."""
    return issubclass(registry.options_for(backend), AddressedOptions)


async def _advertised(host: str) -> str:
    """The address that peers are told.

    Raises:
        ConfigError: it is no host.
    """
    if host != "auto":
        return host
    executor = OwnedExecutor("omni-async-names", 1)
    try:
        return (await local_places(host, 0, executor))[0].host
    finally:
        executor.close()
