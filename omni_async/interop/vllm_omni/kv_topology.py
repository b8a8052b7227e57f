"""Which rank of a stage of vLLM-Omni sends which heads to which, and under which keys.

In: tensor-parallel sizes of both ends, an own rank. Out: ranks, keys, shares of the heads; shares joined or cut.
Never: guesses where sizes do not divide; joins shares that differ in anything but their heads.

With one rank at each end a cache has one key; with more, each pair of ranks that share heads has one.
The rank with more heads than its counterpart sends to, or hears from, several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...codec.tensors import load_torch
from ...errors import ConfigError, ProtocolError, UsageError
from .kv_payload import KVPayload

RANK_STRIDE = 16
"""Ports between the side channels of two ranks of one stage."""

SLICE_MARK = "tp_head_slice"
"""Under which the metadata of a share say which heads it has."""


class HeadSlice(NamedTuple):
    """A share of a rank's heads: which one of how many equal ones, from 0 on."""

    number: int
    shares: int


class KVTopology(msgspec.Struct, frozen=True):
    """The ranks of the two stages, as one of them sees them.

    Raises:
        ConfigError: heads could not be handed over between such stages.
    """

    source_tp: int = 1
    """Ranks of the stage that sends."""
    target_tp: int = 1
    rank: int = 0
    """The own one."""
    kv_heads: int | None = None
    """Of the whole model, where they are known: they have to divide among the ranks of both stages."""

    def __post_init__(self) -> None:
        sizes = self.source_tp, self.target_tp
        for size in sizes:
            if type(size) is not int or size < 1:
                raise ConfigError(f"a stage has 1 rank or more, not {size!r}", path="rank_mapping")
        if max(sizes) % min(sizes):
            raise ConfigError(
                f"{self.source_tp} ranks cannot send a KV cache to {self.target_tp}: one number must "
                "divide the other",
                path="rank_mapping",
            )
        if type(self.rank) is not int or not 0 <= self.rank < max(sizes):
            raise ConfigError(
                f"rank {self.rank!r} of {self.source_tp} and {self.target_tp}", path="rank"
            )
        if self.kv_heads is not None and (self.kv_heads < 1 or self.kv_heads % max(sizes)):
            raise ConfigError(
                f"{self.kv_heads} KV heads do not divide among {max(sizes)} ranks", path="kv_heads"
            )

    @property
    def ratio(self) -> int:
        """Ranks of the larger stage for each of the smaller one."""
        return max(self.source_tp, self.target_tp) // min(self.source_tp, self.target_tp)

    @property
    def widens(self) -> bool:
        """Whether each sender has the heads of several receivers."""
        return self.target_tp > self.source_tp

    @property
    def target_ranks(self) -> list[int]:
        """Whom this rank sends to.

        Raises:
            UsageError: the sending stage has no such rank.
        """
        self._check("sending", self.source_tp)
        if self.widens:
            return [self.rank * self.ratio + number for number in range(self.ratio)]
        return [self.rank // self.ratio]

    @property
    def source_ranks(self) -> list[int]:
        """Whom this rank hears from, in the order of their heads.

        Raises:
            UsageError: the receiving stage has no such rank.
        """
        self._check("receiving", self.target_tp)
        if self.widens:
            return [self.rank // self.ratio]
        return [self.rank * self.ratio + number for number in range(self.ratio)]

    def send_keys(self, request_id: str, from_stage: str, to_stage: str) -> dict[str, int]:
        """What this rank sends under, each with the rank that it is for."""
        return {
            self._key(request_id, from_stage, to_stage, self.rank, target): target
            for target in self.target_ranks
        }

    def receive_keys(self, request_id: str, from_stage: str, to_stage: str) -> dict[str, int]:
        """What this rank asks for, each with the rank that sends it, in the order of their heads."""
        return {
            self._key(request_id, from_stage, to_stage, source, self.rank): source
            for source in self.source_ranks
        }

    def slice_for(self, target_rank: int) -> HeadSlice | None:
        """Which of a sender's heads are for a receiver; ``None`` for all."""
        return HeadSlice(target_rank % self.ratio, self.ratio) if self.widens else None

    def _check(self, what: str, size: int) -> None:
        if self.rank >= size:
            raise UsageError(f"rank {self.rank} of a {what} stage with {size}")

    def _key(
        self, request_id: str, from_stage: str, to_stage: str, source: int, target: int
    ) -> str:
        if self.source_tp == self.target_tp == 1:
            return f"omni_{from_stage}_to_{to_stage}_kv_cache_{request_id}"
        return f"{request_id}_{from_stage}_0_{source}_{target}"


def topology_of(
    rank_mapping: Mapping[str, Any] | None,
    *,
    world_size: int,
    rank: int,
    kv_heads: int | None = None,
) -> KVTopology:
    """The topology of a deploy file's ``rank_mapping``; where that says 1 and 1, as many as there are.

    Raises:
        ConfigError: the mapping makes no sense.
    """
    mapping = rank_mapping or {}
    try:
        source, target = (int(mapping.get(name, 1)) for name in ("from_tp", "to_tp"))
    except (TypeError, ValueError):
        raise ConfigError(f"rank_mapping has {dict(mapping)}", path="rank_mapping") from None
    if source == target == 1:
        source = target = world_size
    return KVTopology(source, target, rank, kv_heads)


def sender_of(info: Mapping[Any, Any], from_stage: str | int) -> tuple[str, int]:
    """Host and port of rank 0 of the stage that sends, from the ``kv_sender_info`` of a request.

    Args:
        info: ``{host, zmq_port}``, or such ones by stage.

    Raises:
        ProtocolError: it does not say, or says it of several other stages.
    """
    told: list[Any] = [info]
    if "host" not in info:
        told = [each for stage, each in info.items() if str(stage) == str(from_stage)]
        told = told or list(info.values())
    if len(told) != 1 or not isinstance(told[0], Mapping):
        raise ProtocolError(f"no sender of stage {from_stage} in {dict(info)}")
    host, port = told[0].get("host"), told[0].get("zmq_port")
    if not host or not isinstance(host, str) or not re.fullmatch(r"\d{1,5}", str(port)):
        raise ProtocolError(f"no host and port of stage {from_stage} in {dict(info)}")
    return host, int(str(port))


def slice_mark(
    topology: KVTopology, target_rank: int, side: str, source_rank: int | None = None
) -> dict[str, Any]:
    """What the metadata of a share say of it: who it is for, and who has cut it."""
    share = topology.slice_for(target_rank)
    assert share is not None
    mark: dict[str, Any] = {"applied": True, "side": side, "target_rank": target_rank}
    if source_rank is not None:
        mark["source_rank"] = source_rank
    mark |= {
        "from_tp": topology.source_tp,
        "to_tp": topology.target_tp,
        "offset_in_shard": share.number,
        "num_slices": share.shares,
    }
    return {SLICE_MARK: mark}


def heads_of(heads: int, share: HeadSlice) -> tuple[int, int]:
    """Begin and end of a share of so many heads.

    Raises:
        ConfigError: they do not divide.
    """
    if heads % share.shares:
        raise ConfigError(
            f"{heads} KV heads of a rank do not divide among {share.shares} receivers"
        )
    each = heads // share.shares
    return each * share.number, each * (share.number + 1)


def joined(shares: Sequence[KVPayload], topology: KVTopology) -> KVPayload:
    """What a rank needs of what its sources have sent, in their order: joined, or cut, or as it is.

    Blocks for as long as copying takes; a single share that needs no cut is handed on.

    Raises:
        ProtocolError: shares of different caches; one that was cut for another rank; no heads.
    """
    first = shares[0]
    if len(shares) > 1:
        return _merged(shares)
    if not topology.widens:
        return first
    mark = first.metadata.get(SLICE_MARK)
    if isinstance(mark, Mapping) and mark.get("applied"):
        _check_mark(first, mark, topology)
        return first
    return _cut(first, topology)


def _check_mark(share: KVPayload, mark: Mapping[str, Any], topology: KVTopology) -> None:
    told = (mark.get("target_rank", topology.rank), mark.get("num_slices", topology.ratio))
    if told != (topology.rank, topology.ratio):
        raise ProtocolError(
            f"the KV cache of {share.request_id!r} was cut into {told[1]} for rank {told[0]}, this is "
            f"rank {topology.rank} of {topology.ratio}"
        )


def _cut(share: KVPayload, topology: KVTopology) -> KVPayload:
    part = topology.slice_for(topology.rank)
    assert part is not None

    def cut(tensor: Any) -> Any:
        if tensor is None:
            return None
        _check_heads(share, tensor)
        try:
            first, last = heads_of(tensor.shape[1], part)
        except ConfigError as error:
            raise ProtocolError(f"the KV cache of {share.request_id!r}: {error}") from None
        return tensor[:, first:last].clone(memory_format=load_torch().module.contiguous_format)

    return share._replace(
        keys=list(map(cut, share.keys)),
        values=list(map(cut, share.values)),
        metadata={**share.metadata, **slice_mark(topology, topology.rank, "receiver")},
    )


def _merged(shares: Sequence[KVPayload]) -> KVPayload:
    first = shares[0]
    for other in shares[1:]:
        if first.request_id != other.request_id:
            raise ProtocolError(
                f"shares of the KV caches of {first.request_id!r} and {other.request_id!r}"
            )
        if len(first.keys) != len(other.keys):
            raise ProtocolError(
                f"shares of {first.request_id!r} have {len(first.keys)} and {len(other.keys)} layers"
            )
    torch = load_torch().module

    def merge(tensors: tuple[Any, ...]) -> Any:
        if all(tensor is None for tensor in tensors):
            return None
        kinds = set()
        for tensor in tensors:
            if tensor is None:
                raise ProtocolError(f"a share of {first.request_id!r} lacks a layer of another")
            _check_heads(first, tensor)
            kinds.add((tensor.dtype, tensor.shape[0], tensor.shape[2:]))
        if len(kinds) > 1:
            shapes = [(str(tensor.dtype), tuple(tensor.shape)) for tensor in tensors]
            raise ProtocolError(f"shares of {first.request_id!r} do not fit: {shapes}")
        return torch.cat(tensors, dim=1)

    return first._replace(
        keys=list(map(merge, zip(*(share.keys for share in shares), strict=True))),
        values=list(map(merge, zip(*(share.values for share in shares), strict=True))),
        metadata=dict(first.metadata),
    )


def _check_heads(share: KVPayload, tensor: Any) -> None:
    if tensor.dim() < 3:
        raise ProtocolError(
            f"the KV cache of {share.request_id!r} has no heads to hand over: {tuple(tensor.shape)}"
        )
