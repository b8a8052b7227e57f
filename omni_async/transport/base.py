"""Transport: what a user holds. Checks every argument before anything moves.

In: the caller's arguments. Out: receipts, deliveries, typed errors.
Never: moves a byte itself; a subclass does, for stores or for engines.
"""

from __future__ import annotations

import abc
import asyncio
import math
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from logging import DEBUG
from typing import TYPE_CHECKING, Any

from .._aio.breath import Breath
from .._aio.loop import LoopBound
from ..errors import ClosedError, OmniAsyncError, UsageError
from ..model import (
    Capabilities,
    EdgeName,
    Endpoint,
    Health,
    Receipt,
    Role,
    TransferKey,
)
from ..observe import Counters, get_logger
from ..observe.streams import StreamMeters
from .arguments import (
    checked_device,
    checked_dtype,
    checked_edge,
    checked_key,
    checked_owner,
    checked_shape,
    stage_name,
)
from .batches import get_each, put_each
from .delivery import Delivery
from .edge import Edge
from .limits import DEFAULT, Timeout, offer_limit, put_limit
from .outcomes import count_error, told
from .streams.window import DEFAULT_WINDOW

if TYPE_CHECKING:
    import torch

    from ..pool.buffer import ManagedBuffer
    from .guests import Guests
    from .streams import ChunkReader, ChunkWriter

_log = get_logger("omni_async.transport")


class Transport(abc.ABC):
    """One endpoint of a pipeline: the sending or the receiving side of one stage.

    Made by :func:`omni_async.open_transport`. It belongs to the event loop that opened it.
    """

    def __init__(self, endpoint: Endpoint, role: Role, capabilities: Capabilities, linger: float):
        self.endpoint = endpoint
        self.role: Role = role
        self.capabilities = capabilities
        self.counters = Counters()
        self.meters = StreamMeters(role)
        self._linger = linger
        self._edges: dict[tuple[str | int, str | int], EdgeName] = {}
        self._bound = LoopBound(f"transport {endpoint}")
        self._breath = Breath(self._bound.loop)
        self._closing: asyncio.Future[None] | None = None

    # --- data -------------------------------------------------------------------------------------

    async def put(
        self,
        from_stage: str | int,
        to_stage: str | int,
        key: str,
        value: Any,
        *,
        request_id: str | None = None,
        consumers: int = 1,
        timeout: Timeout = DEFAULT,
    ) -> Receipt:
        """Offer a payload; returns when it is safe to be fetched.

        The caller may change or free ``value`` afterwards, except leaves that live in the pool
        (:meth:`empty`, :meth:`allocate`): these are sent in place.

        Args:
            from_stage, to_stage: the edge; ``from_stage`` is this transport's own stage.
            key: 1 to 1,024 bytes of UTF-8. Put again, it replaces a payload nobody has claimed.
            value: see "what can be sent"; anything else is an :class:`EncodeError`.
            request_id: owner for :meth:`cleanup`; the key by default.
            consumers: how many deliveries it is for.
            timeout: seconds to wait for space in the pool; 30 by default.

        Raises:
            UsageError: wrong role, edge, key, loop or argument.
            EncodeError: the value cannot be sent; names the path inside it.
            KeyExists: a receiver has claimed the payload that was put under this key before.
            PayloadTooLarge: it can never fit.
            PoolExhausted: no space before the time limit.
            TransferCancelled: ``cleanup`` or closing while it waited for space.
            ClosedError: the transport is closed.

        Cancellation: safe; a cancelled put has offered nothing. Where the engine writes (see
        ``capabilities.verb``), a large payload may be under way to its receiver by then: that one is
        delivered, and the cancellation follows.
        """
        where = self.enter("sender", from_stage, to_stage, key)
        if request_id is not None:
            checked_owner(request_id)
        if type(consumers) is not int or consumers < 1:
            raise UsageError(f"consumers must be an int of at least 1, not {consumers!r}")
        limit = put_limit(timeout)
        if self._breath.used_up():
            await asyncio.sleep(0)
            self._check()
        try:
            moving = self._put(where, value, request_id or key, consumers, limit)
            receipt = await (told("put", where, moving) if _log.enabled(DEBUG) else moving)
        except OmniAsyncError as error:
            count_error(self.counters, error)
            raise
        finally:
            self._breath.used()  # not before: by now the word has left
        self.counters.puts += 1
        self.counters.bytes_transferred += receipt.nbytes
        return receipt

    async def get(
        self,
        from_stage: str | int,
        to_stage: str | int,
        key: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout = DEFAULT,
        raw: bool = False,
        copy: bool | None = None,
        device: Any = None,
    ) -> Delivery:
        """Wait for a payload and take it.

        Args:
            from_stage, to_stage: the edge; ``to_stage`` is this transport's own stage.
            key: what it was put under.
            metadata: ``Receipt.metadata``, whole or only the address; absent, the configured sender.
            timeout: by default 30 s to be offered the payload plus, once its size is known, 30 s and
                5 s per full 100 MiB to move it. ``None``: no limit. ``0``: ask once.
            raw: deliver the bytes as a :class:`ManagedBuffer` instead of the decoded value.
            copy: independent memory instead of views of pool memory. By default only where other
                receivers read the same payload.
            device: a torch device for the tensors; the CPU by default.

        Raises:
            UsageError: wrong role, edge, key, loop or argument.
            KeyNotFound: ``timeout=0`` and it is not there now, or it has expired.
            TransferTimeout: the time limit passed; names edge, key, peer and phase.
            PeerLost: the sender went away after it had offered the payload.
            TransferCancelled: ``cleanup`` here or at the sender, or closing.
            EngineFault: the engine failed; the payload is still on offer.
            DecodeError: the bytes are no payload of this library, or of a type not registered here.
            ProtocolError: the sender refuses this receiver, or the other way round: another wire
                version, another user, another namespace.
            ClosedError: the transport is closed.

        Cancellation: safe; a payload whose get did not return stays on offer.
        """
        where = self.enter("receiver", from_stage, to_stage, key)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise UsageError(f"metadata must be a mapping or None, not {metadata!r}")
        if raw is not True and raw is not False:
            raise UsageError(f"raw must be a bool, not {raw!r}")
        if copy is not None and copy is not True and copy is not False:
            raise UsageError(f"copy must be a bool or None, not {copy!r}")
        limit = offer_limit(timeout)
        if device is not None:
            device = checked_device(device)
        if self._breath.used_up():
            await asyncio.sleep(0)
            self._check()
        self._breath.used()
        try:
            moving = self._get(where, metadata, timeout, limit, raw, copy, device)
            delivery = await (told("get", where, moving) if _log.enabled(DEBUG) else moving)
        except OmniAsyncError as error:
            count_error(self.counters, error)
            raise
        self.counters.gets += 1
        self.counters.bytes_transferred += delivery.nbytes
        return delivery

    async def put_many(
        self, from_stage: str | int, to_stage: str | int, values: Mapping[str, Any], **options: Any
    ) -> dict[str, Receipt | BaseException]:
        """Put a batch, with fewer messages than one by one.

        Returns the outcome of each key: its :class:`Receipt`, or the error :meth:`put` would raise.

        Cancellation: safe; keys not yet put are not put.
        """
        if not isinstance(values, Mapping):
            raise UsageError(f"values must be a mapping of keys to values, not {values!r}")
        self._enter_edge("sender", from_stage, to_stage)
        return await put_each(partial(self.put, from_stage, to_stage, **options), values)

    async def get_many(
        self, from_stage: str | int, to_stage: str | int, keys: Iterable[str], **options: Any
    ) -> dict[str, Delivery | BaseException]:
        """Get a batch, with fewer messages than one by one.

        Returns the outcome of each key: its :class:`Delivery`, or the error :meth:`get` would raise.

        Cancellation: safe; what was not delivered stays on offer. What was delivered before is
        lost with the call, so bound a batch by ``timeout``, which keeps it.
        """
        if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
            raise UsageError(f"keys must be an iterable of str, not {keys!r}")
        self._enter_edge("receiver", from_stage, to_stage)
        return await get_each(partial(self.get, from_stage, to_stage, **options), keys)

    @abc.abstractmethod
    async def allocate(self, nbytes: int, *, timeout: Timeout = DEFAULT) -> ManagedBuffer:
        """Memory of the pool, to be filled and then put as a whole value without a copy.

        Raises:
            UsageError: not a sender, or a size that is no int of at least 0.
            PayloadTooLarge, PoolExhausted: as for :meth:`put`.

        Cancellation: safe.
        """

    async def empty(
        self, shape: Iterable[int] | int, dtype: Any = None, *, timeout: Timeout = DEFAULT
    ) -> torch.Tensor:
        """A tensor in the pool; as a leaf of a put it is sent in place, without a copy.

        Args:
            shape: its sizes.
            dtype: a ``torch.dtype``; torch's default dtype when absent.

        Raises:
            UsageError: not a sender, or a shape or dtype that makes no sense.
            BackendUnavailable: PyTorch is not installed.
            PayloadTooLarge, PoolExhausted: as for :meth:`put`.

        Cancellation: safe.
        """
        kind = checked_dtype(dtype)
        sizes = checked_shape(shape)
        nbytes = math.prod(sizes) * kind.itemsize
        buffer = await self.allocate(nbytes, timeout=timeout)
        tensor = buffer.as_tensor(kind, sizes)
        buffer.release()
        return tensor

    # --- the rest ---------------------------------------------------------------------------------

    def edge(
        self, from_stage: str | int, to_stage: str | int, *, window: int = DEFAULT_WINDOW
    ) -> Edge:
        """The same calls without repeating the stages; ``window`` is that of the edge's streams."""
        return Edge(self, EdgeName(stage_name(from_stage), stage_name(to_stage)), window)

    @abc.abstractmethod
    async def cleanup(self, request_id: str) -> int:
        """Drop what ``request_id`` still holds here and wake its waiters with ``TransferCancelled``.

        Memory that an operation in flight is using is freed by that operation's end. Returns how many
        payloads and waiters there were.

        Cancellation: safe.
        """

    @property
    def guests(self) -> Guests:
        """The door for rooms above that bring memory and words of their own, such as :mod:`omni_async.kv`.

        Raises:
            UsageError: this backend moves no bytes between the memory of two processes.
        """
        raise UsageError(
            f"{self.capabilities.backend} is a store, whose two ends do not know of each other; KV caches "
            "need a connector that moves bytes from process to process, such as "
            "MooncakeTransferEngineConnector, NixlConnector or SharedMemoryConnector"
        )

    @abc.abstractmethod
    def update_sender_info(self, host: str, port: int, rank: int | None = None) -> None:
        """Where gets without metadata go from now on (for the sender of ``rank``)."""

    @abc.abstractmethod
    def expect_sender(self, from_stage: str | int, rank: int, replica: int) -> None:
        """Which endpoint of a stage sends to this receiver, where endpoints are found by name.

        By default the one of the receiver's own rank and replica.
        """

    @abc.abstractmethod
    async def drain(self, timeout: float | None = None) -> int:
        """Wait until everything that was put is fetched, at most ``timeout`` seconds.

        Returns how many payloads nobody has fetched yet.

        Raises:
            ClosedError: the transport was closed meanwhile.

        Cancellation: safe.
        """

    @abc.abstractmethod
    def health(self) -> Health:
        """A snapshot of counters and gauges; works after closing too."""

    async def aclose(self) -> None:
        """Close without waiting for unclaimed payloads. Idempotent; returns when all is closed.

        Cancellation: ends; closing goes on to its end, then the cancellation is raised.
        """
        await self._close(linger=0.0)

    @abc.abstractmethod
    def abort(self) -> None:
        """Close now, synchronously: nothing is waited for. Idempotent."""

    @property
    def closed(self) -> bool:
        return self._closing is not None

    def check_caller(self) -> None:
        """Refuse another loop, thread or process.

        Raises:
            UsageError: says which.
        """
        self._bound.check()

    def check_open(self) -> None:
        """The same, and a closed transport.

        Raises:
            UsageError, ClosedError: says which.
        """
        self._check()

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(linger=self._linger if kind is None else 0.0)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{self.capabilities.backend} {self.role} {self.endpoint}, {state}>"

    # --- for subclasses ---------------------------------------------------------------------------

    @abc.abstractmethod
    def _put(
        self, where: TransferKey, value: Any, owner: str, consumers: int, limit: float | None
    ) -> Coroutine[Any, Any, Receipt]: ...

    @abc.abstractmethod
    def _get(
        self,
        where: TransferKey,
        metadata: Mapping[str, Any] | None,
        timeout: Timeout,
        limit: float | None,
        raw: bool,
        copy: bool | None,
        device: Any,
    ) -> Coroutine[Any, Any, Delivery]: ...

    @abc.abstractmethod
    def writer(self, where: TransferKey, window: int) -> ChunkWriter:
        """The writing end of a stream that :meth:`enter` has checked; see :meth:`Edge.stream`."""

    @abc.abstractmethod
    def reader(
        self, where: TransferKey, window: int, metadata: Mapping[str, Any] | None
    ) -> ChunkReader:
        """The reading end of a stream that :meth:`enter` has checked; see :meth:`Edge.stream`."""

    def fate(self, where: TransferKey) -> asyncio.Future[bool] | None:
        """Of a put that was just cancelled: will tell whether it was done all the same, where that is open.

        Who asks wants it to stay then; else it is taken back.
        """
        return None

    @abc.abstractmethod
    async def _close(self, linger: float) -> None: ...

    def _check(self, role: Role | None = None) -> None:
        """Refuse the wrong loop, thread or process, a closed transport, the wrong role."""
        self._bound.check()
        if self._closing is not None:
            raise ClosedError(f"transport {self.endpoint} is closed")
        if role is not None and role != self.role:
            does = "puts" if role == "sender" else "gets"
            raise UsageError(
                f"transport {self.endpoint} was opened with role={self.role!r} and cannot do this: "
                f"only a {role} {does}; open another transport with role={role!r}"
            )

    def enter(
        self, role: Role, from_stage: str | int, to_stage: str | int, key: str
    ) -> TransferKey:
        edge = self._enter_edge(role, from_stage, to_stage)
        return TransferKey(*edge, checked_key(key))

    def _enter_edge(self, role: Role, from_stage: str | int, to_stage: str | int) -> EdgeName:
        self._check(role)
        try:
            return self._edges[from_stage, to_stage]
        except (KeyError, TypeError):  # unknown, or not even hashable
            edge = checked_edge(from_stage, to_stage, self.role, self.endpoint.stage)
        if type(from_stage) is type(to_stage) is str:  # 1, 1.0 and True would be one entry
            self._edges[from_stage, to_stage] = edge
        return edge
