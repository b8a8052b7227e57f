"""KV caches to and from stages of vLLM-Omni, as its own KV manager sends and receives them.

In: an engine's paged caches and a request; or a request alone. Out: its cache in the other stage, whole, or an error.
Never: sends or hands out a part of a cache; acknowledges what was not put; holds up the event loop with copies.

:func:`send_kv` and :func:`receive_kv` go over any edge. With ``peer: vllm-omni`` the other end is the unmodified
manager; without it, both ends are these.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .._aio.copying import INLINE_COPY
from .._aio.executor import OwnedExecutor
from .._aio.finish import finish, finish_all
from ..codec.tensors import load_torch
from ..errors import ProtocolError, UsageError
from ..interop.vllm_omni.kv_payload import (
    KEYS,
    VALUES,
    KVPayload,
    Packing,
    check_whole,
    plan_packing,
)
from ..interop.vllm_omni.kv_reading import from_object, unpack, unpack_landed
from ..interop.vllm_omni.kv_topology import RANK_STRIDE, SLICE_MARK, KVTopology, joined, slice_mark
from ..interop.vllm_omni.kv_triggers import is_warm_up
from ..model import Receipt, Verb
from ..pool import ManagedBuffer
from ..transport.limits import DEFAULT, Timeout
from .paged import Extraction

if TYPE_CHECKING:
    from ..transport.edge import Edge

T = TypeVar("T")

ONE_RANK = KVTopology()


class KVFamily(NamedTuple):
    """A request's cache and those of its companions, by role."""

    parent: KVPayload
    companions: dict[str, KVPayload]


async def send_kv(
    edge: Edge,
    request_id: str,
    caches: Sequence[Any],
    block_ids: Sequence[int],
    *,
    tokens: int,
    block_size: int,
    topology: KVTopology = ONE_RANK,
    cache_dtype: str = "auto",
    metadata: Mapping[str, Any] | None = None,
    absent_layers: Collection[int] = (),
    cuts: bool = True,
    timeout: Timeout = DEFAULT,
) -> dict[str, Receipt]:
    """Offer a request's cache to the stage at the other end of an edge.

    It is copied from its blocks straight into the transport's pool. When this returns, the caches may be
    written to and the blocks given to others. ``drop_kv`` takes back what nobody has fetched.

    Args:
        edge: of a sender; its pool must be on the host.
        request_id: by which the other stage knows the request.
        caches: one for each layer, in any form of :mod:`.paged`, on the host or on a device.
        block_ids: the request's blocks in its order.
        tokens: how many of its tokens are sent.
        topology: ranks of both stages; this one sends its own heads to those that need them.
        cache_dtype: what the other stage is told of the cache's dtype.
        metadata: told besides, under names of their own; JSON.
        absent_layers: layers that have no cache; theirs in ``caches`` is ``None``.
        cuts: send each of several receivers its heads only. Without it each gets all of this rank's, as from
            vLLM-Omni's workers, and cuts them itself; its workers, other than its diffusion stages, always cut.
        timeout: for room in the pool, as for :meth:`omni_async.Transport.put`.

    Returns:
        The receipts by key, one for each rank that it is for.

    Raises:
        UsageError: caches or blocks that are not there or are no caches; a warm-up's id.
        ConfigError: heads do not divide among the receiving ranks.
        EncodeError: the format cannot hold it.

    It raises what :meth:`omni_async.Transport.put` does, too. Then nothing of the request is on offer any more.

    Cancellation: safe; a cancelled call leaves nothing on offer.
    """
    if is_warm_up(request_id):
        raise UsageError(f"{request_id!r} is a warm-up, for which nobody waits")
    described = {
        "block_size": block_size,
        "num_layers": len(caches),
        "dtype": cache_dtype,
        "seq_len": tokens,
    }
    taken_names = [name for name in metadata or () if name in described or name == SLICE_MARK]
    if taken_names:
        raise UsageError(f"metadata are told under names of their own, not {taken_names}")
    described.update(metadata or {})
    filled: dict[str, ManagedBuffer] = {}
    receipts: dict[str, Receipt] = {}
    from_stage, to_stage = edge.name
    plans: dict[str, tuple[Packing, Extraction]] = {}
    for key, target in topology.send_keys(request_id, from_stage, to_stage).items():
        share = topology.slice_for(target) if cuts else None
        taken = Extraction(
            caches, block_ids, tokens, block_size, absent_layers=absent_layers, share=share
        )
        mark = slice_mark(topology, target, "sender", topology.rank) if share is not None else {}
        packing = plan_packing(
            request_id, taken.keys, taken.values, taken.block_ids, {**described, **mark}
        )
        plans[key] = packing, taken
    try:
        for key, (packing, taken) in plans.items():
            buffer = await edge.transport.allocate(packing.nbytes, timeout=timeout)
            filled[key] = buffer
            small = taken.on_host and packing.nbytes <= INLINE_COPY
            await _run(small, partial(_fill, buffer.tensor, packing, taken))
        for key, buffer in filled.items():
            receipts[key] = await edge.put(key, buffer.tensor, timeout=timeout)
    except BaseException:
        await finish(_drop(edge, receipts))
        raise
    finally:
        for buffer in filled.values():
            buffer.release()
    return receipts


async def drop_kv(edge: Edge, request_id: str, topology: KVTopology = ONE_RANK) -> int:
    """Take a request's cache off offer, after an abort; the number of payloads that were.

    Cancellation: safe.
    """
    return await _drop(edge, topology.send_keys(request_id, *edge.name))


async def receive_kv(
    edge: Edge,
    request_id: str,
    *,
    topology: KVTopology = ONE_RANK,
    sender: tuple[str, int] | Mapping[int, Mapping[str, Any]] | None = None,
    absent_layers: Collection[int] = (),
    device: Any = None,
    timeout: Timeout = DEFAULT,
) -> KVPayload | None:
    """Wait for a request's cache: all of it, or an error.

    Args:
        edge: of a receiver.
        topology: ranks of both stages; this one gets the heads that it needs.
        sender: host and port of rank 0 of the sending stage, from which its other ranks are found; or the
            metadata of each rank's receipt, by rank. By default what the transport was told, which is one sender.
        absent_layers: layers that may have no cache.
        device: a torch device to put the tensors on.
        timeout: until everything is there, as for :meth:`omni_async.Transport.get`.

    Returns:
        The cache. Where one sender's is enough as it is, its tensors are views of the pool, which keep their
        slot. ``None`` at once for a warm-up: nobody sends one.

    Raises:
        TransferTimeout: it did not come in time, or not from all ranks. What has come is gone with it.
        ProtocolError: what has come is no whole cache, or belongs to another request or rank.
        DecodeError: it makes no sense.
        UsageError: several senders, and nothing that tells where they are.

    It raises what :meth:`omni_async.Transport.get` does, too.

    Cancellation: as of :meth:`omni_async.Transport.get`: a cache of which a rank's share had come by then is lost.
    """
    if is_warm_up(request_id):
        return None
    sources = topology.receive_keys(request_id, *edge.name)
    kept = edge.transport.capabilities.verb is Verb.STORE
    if sender is None and len(sources) > 1 and not kept:
        raise UsageError(f"{len(sources)} ranks send this cache; tell where they are by 'sender'")
    deliveries = await _all(
        edge.get(key, _address(sender, rank), timeout=timeout, raw=kept)
        for key, rank in sources.items()
    )
    small = device is None and sum(delivery.nbytes for delivery in deliveries) <= INLINE_COPY
    values = [delivery.value for delivery in deliveries]
    for delivery in deliveries:
        delivery.release()
    return await _run(small, partial(_whole, request_id, values, topology, absent_layers, device))


async def receive_family(
    edge: Edge, request_id: str, companions: Mapping[str, str], **options: Any
) -> KVFamily | None:
    """A request's cache and those of its companions: all of them, or an error.

    Args:
        companions: their request ids by role, as ``cfg_kv_request_ids`` has them.
        options: as for :func:`receive_kv`, for each of them.

    Returns:
        ``None`` at once for a warm-up.

    It raises what :func:`receive_kv` does.

    Cancellation: as of :func:`receive_kv`.
    """
    if is_warm_up(request_id):
        return None
    requests = [request_id, *companions.values()]
    if len(set(requests)) < len(requests) or any(map(is_warm_up, requests)):
        raise UsageError(f"{requests} are not a request and its companions")
    parent, *others = await _all(receive_kv(edge, request, **options) for request in requests)
    assert parent is not None
    found = {
        role: other
        for role, other in zip(companions, others, strict=True)
        if other is not None  # never: none is a warm-up
    }
    return KVFamily(parent, found)


def _address(
    sender: tuple[str, int] | Mapping[int, Mapping[str, Any]] | None, rank: int
) -> Mapping[str, Any] | None:
    if sender is None:
        return None
    if isinstance(sender, Mapping):
        try:
            return sender[rank]
        except KeyError:
            raise UsageError(f"'sender' does not tell where rank {rank} is") from None
    host, port = sender
    return {"source_host": host, "source_port": port + rank * RANK_STRIDE}


def _whole(
    request_id: str,
    values: Sequence[Any],
    topology: KVTopology,
    absent_layers: Collection[int],
    device: Any,
) -> KVPayload:
    """The cache that all shares together are. Blocks for as long as copying takes."""
    shares = [_share(request_id, value, absent_layers) for value in values]
    whole = joined(shares, topology)
    if device is None:
        return whole

    def move(tensor: Any) -> Any:
        return None if tensor is None else tensor.to(device)

    return whole._replace(keys=list(map(move, whole.keys)), values=list(map(move, whole.values)))


def _share(request_id: str, value: Any, absent_layers: Collection[int]) -> KVPayload:
    if isinstance(value, ManagedBuffer):
        share = unpack_landed(value.array)
    elif isinstance(value, (bytes, load_torch().module.Tensor)):
        share = unpack(value)
    else:
        share = from_object(value)
    if share.request_id != request_id:
        raise ProtocolError(f"{share.request_id!r} has come under the key of {request_id!r}")
    check_whole(share, absent_layers=absent_layers)
    return share


def _fill(slot: Any, packing: Packing, taken: Extraction) -> None:
    torch = load_torch().module
    head = len(packing.head)
    slot[:head] = torch.frombuffer(bytearray(packing.head), dtype=torch.uint8)
    places = {(part.cache, part.layer): part for part in packing.parts}

    def place(keys: bool, layer: int) -> Any:
        part = places[KEYS if keys else VALUES, layer]
        return slot[part.offset : part.offset + part.nbytes]

    end = head
    for part in packing.parts:  # gaps tell nothing of what was there before
        slot[end : part.offset] = 0
        end = part.offset + part.nbytes
    taken.into(place)


async def _drop(edge: Edge, keys: Iterable[str]) -> int:
    return sum([await edge.transport.cleanup(key) for key in keys])


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The outcomes of all, or the first error once the others have ended.

    Cancellation: ends when all have ended.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await finish_all(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]


async def _run(small: bool, work: Callable[[], T]) -> T:
    """Do it here, or in a thread.

    Cancellation: ends when the work has ended.
    """
    if small:
        return work()
    with contextlib.closing(OwnedExecutor("omni-async-kv", 1)) as executor:
        return await executor.finish(work)
