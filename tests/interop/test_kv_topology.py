"""Ranks of two stages: who sends which heads to whom, and under which keys; as vLLM-Omni's own code has it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async.errors import ConfigError, ProtocolError, UsageError
from omni_async.interop.vllm_omni.kv_payload import KVPayload
from omni_async.interop.vllm_omni.kv_topology import (
    SLICE_MARK,
    KVTopology,
    joined,
    sender_of,
    slice_mark,
    topology_of,
)
from tests.kv.paged_samples import same

if TYPE_CHECKING:
    from .child import Child

SIZES = [1, 2, 3, 4, 6, 8]


def test_keys_are_those_of_their_manager(their_kv: Child) -> None:
    all_ = [
        (source, target, rank)
        for source, target in itertools.product(SIZES, SIZES)
        for rank in range(max(source, target))
    ]
    theirs = their_kv.call("keys", "r", all_)
    for (source, target, rank), (sent, asked) in zip(all_, theirs, strict=True):
        if max(source, target) % min(source, target):
            with pytest.raises(ConfigError, match=f"{source} ranks cannot send"):
                KVTopology(source, target, rank)
            assert "divisible" in sent
            assert "divisible" in asked
            continue
        topology = KVTopology(source, target, rank)
        if rank < source:
            assert list(topology.send_keys("r", "0", "1")) == sent
        if rank < target:
            # They tell nothing of the rank where there is only one.
            wanted = {key: whose or 0 for key, whose in asked}
            assert topology.receive_keys("r", "0", "1") == wanted


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_everyone_asks_for_what_is_sent_to_him(source: int, target: int) -> None:
    sent = [
        (key, rank, whom)
        for rank in range(source)
        for key, whom in KVTopology(source, target, rank).send_keys("r", "a", "b").items()
    ]
    asked = [
        (key, whose, rank)
        for rank in range(target)
        for key, whose in KVTopology(source, target, rank).receive_keys("r", "a", "b").items()
    ]
    assert sorted(sent) == sorted(asked)
    assert len({key for key, _, _ in sent}) == len(sent)


@pytest.mark.parametrize(
    "parts",
    [(0, 1), (1, 0), (-1, 1), (2, 3), (4, 6), (True, 1), (1.5, 1), (1, 1, 1), (2, 2, -1), (2, 2, 0, 3),
     (2, 4, 0, 2), (1, 1, 0, 0)],
)  # fmt: skip
def test_stages_between_which_nothing_can_be_sent(parts: Any) -> None:
    with pytest.raises(ConfigError):
        KVTopology(*parts)


def test_ranks_that_a_stage_does_not_have() -> None:
    with pytest.raises(UsageError, match="rank 1 of a receiving stage with 1"):
        KVTopology(2, 1, 1).receive_keys("r", "0", "1")
    with pytest.raises(UsageError, match="rank 1 of a sending stage with 1"):
        KVTopology(1, 2, 1).send_keys("r", "0", "1")


def test_the_deploy_files_mapping() -> None:
    assert topology_of(None, world_size=2, rank=1) == KVTopology(2, 2, 1)
    assert topology_of({"from_tp": 1, "to_tp": 1}, world_size=1, rank=0) == KVTopology()
    assert topology_of({"from_tp": "4", "to_tp": 2}, world_size=8, rank=3) == KVTopology(4, 2, 3)
    with pytest.raises(ConfigError, match="rank_mapping"):
        topology_of({"from_tp": "many"}, world_size=1, rank=0)


def test_where_senders_are() -> None:
    one, two = {"host": "a", "zmq_port": 1}, {"host": "b", "zmq_port": "2"}
    assert sender_of(one, 0) == ("a", 1)
    assert sender_of({"0": one, "1": two}, 1) == ("b", 2)
    assert sender_of({0: one, 1: two}, "0") == ("a", 1)
    assert sender_of({"7": two}, 0) == ("b", 2)
    for info in ({"1": one, "2": two}, {}, {"host": "a"}, {"host": "", "zmq_port": 1}, {"0": 5}):
        with pytest.raises(ProtocolError):
            sender_of(info, 0)


# --- shares of heads ------------------------------------------------------------------------------


def cache(heads: int = 8, tokens: int = 5, layers: int = 2) -> KVPayload:
    generator = torch.Generator().manual_seed(heads)
    made = [
        torch.randint(0, 1 << 15, (tokens, heads, 4), dtype=torch.int16, generator=generator)
        for _ in range(2 * layers)
    ]
    return KVPayload("r", [*made[:layers], None], [*made[layers:], None], [0], {"seq_len": tokens})


def part(whole: KVPayload, number: int, count: int, **marks: Any) -> KVPayload:
    def cut(tensor: Any) -> Any:
        return None if tensor is None else tensor.chunk(count, 1)[number].contiguous()

    return whole._replace(
        keys=list(map(cut, whole.keys)),
        values=list(map(cut, whole.values)),
        metadata={**whole.metadata, **marks},
    )


@settings(deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_every_rank_gets_its_heads(source: int, target: int, cut_by_sender: bool) -> None:
    whole = cache()
    for rank in range(target):
        topology = KVTopology(source, target, rank)
        shares = [part(whole, number, source) for number in topology.source_ranks]
        if topology.widens and cut_by_sender:
            (sender,) = topology.source_ranks
            mark = slice_mark(KVTopology(source, target, sender), rank, "sender", sender)
            shares = [part(whole, rank, target, **mark)]
        found = joined(shares, topology)
        wanted = part(whole, rank, target)
        assert same(found.keys, wanted.keys)
        assert same(found.values, wanted.values)
        assert all(tensor is None or tensor.is_contiguous() for tensor in found.keys)
        if topology.widens:
            mark = found.metadata[SLICE_MARK]
            assert mark["applied"]
            assert mark["target_rank"] == rank
            assert mark["num_slices"] == target // source


def test_a_share_that_is_enough_is_not_copied() -> None:
    share = cache()
    assert joined([share], KVTopology(2, 2, 1)) is share


@pytest.mark.parametrize(
    ("shares", "topology", "why"),
    [
        ([cache(), cache()._replace(request_id="s")], (2, 1), "'r' and 's'"),
        ([cache(), cache(layers=3)], (2, 1), "3 and 4 layers"),
        ([cache(), cache(tokens=6)], (2, 1), "do not fit"),
        ([cache(), cache()._replace(keys=[None, *cache().keys[1:]])], (2, 1), "lacks a layer"),
        ([cache()._replace(keys=[torch.zeros(5, 4)] * 3)] * 2, (2, 1), "no heads"),
        ([cache(heads=3)], (1, 2), "3 KV heads of a rank do not divide among 2"),
        ([part(cache(), 1, 2, **slice_mark(KVTopology(1, 2, 0), 1, "sender", 0))], (1, 2), "for rank 1"),
        ([part(cache(), 0, 4, **slice_mark(KVTopology(1, 4, 0), 0, "sender", 0))], (1, 2), "into 4"),
    ],
)  # fmt: skip
def test_shares_that_do_not_belong_together(shares: Any, topology: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        joined(shares, KVTopology(*topology))
