"""Plans against caches in numpy: every byte, and no move more than has to be."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_async import ProtocolError, UsageError
from omni_async.kv.layout import KVLayout
from omni_async.kv.plan import KVMove, KVPlan, check_blocks, plan_moves, sources_of, targets_of
from omni_async.kv.words import MOST_BLOCKS

from .caches import (
    FORMS,
    ORDERS,
    TPS,
    Array,
    Case,
    canonical,
    cases,
    mapping,
    maximal_runs,
    store,
    tensors,
)

SHORT = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def layout(**values: Any) -> KVLayout:
    usual = {
        "layers": 2,
        "num_blocks": 8,
        "block_size": 4,
        "kv_heads": 8,
        "head_size": 16,
        "dtype": "bfloat16",
    }
    return KVLayout(**{**usual, **values})


def applied(moves: list[KVMove], target: KVLayout) -> Array:
    out = np.full(target.layer_nbytes, -1)
    for source, start, nbytes in moves:
        assert nbytes > 0
        assert (out[start : start + nbytes] == -1).all(), "two moves end in one byte"
        out[start : start + nbytes] = np.arange(source, source + nbytes)
    return out


def check(case: Case) -> None:
    source, source_blocks, target, target_blocks, tokens = case
    moves = plan_moves(source, source_blocks, target, target_blocks, tokens=tokens)
    wanted = mapping(*case)
    assert (applied(moves, target) == wanted).all()
    assert len(moves) == maximal_runs(wanted, source, target)
    assert moves == sorted(moves, key=lambda move: move.target)
    plan = KVPlan.of(source, source_blocks, target, target_blocks, tokens=tokens)
    assert len(plan) == len(moves)
    assert plan.moves() == moves
    assert plan.nbytes == sum(move.nbytes for move in moves) == (wanted >= 0).sum()
    assert plan.piece_nbytes * len(moves) == pytest.approx(plan.nbytes)
    full = tokens == len(source_blocks) * source.block_size
    if full and tokens == len(target_blocks) * target.block_size:
        assert plan_moves(source, source_blocks, target, target_blocks) == moves


@SHORT
@given(cases())
def test_each_byte_goes_where_it_belongs_in_the_fewest_moves(case: Case) -> None:
    check(case)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@LONG
@given(cases())
def test_the_same_for_long(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("kv_heads", [1, 2, 8, 24])
@pytest.mark.parametrize(("source_tp", "target_tp"), list(itertools.product(TPS, TPS)))
def test_all_ranks_together_carry_the_whole_cache(
    source_tp: int, target_tp: int, kv_heads: int
) -> None:
    tokens, blocks = 10, [5, 2, 7]
    for number, (source_form, target_form) in enumerate(itertools.product(FORMS, FORMS)):
        if (source_form == "mla") != (target_form == "mla") or (
            source_form == "mla" and kv_heads != 1
        ):
            continue
        shared: dict[str, Any] = {"kv_heads": kv_heads, "head_size": 2, "dtype": "float32"}
        here = layout(
            form=source_form, order=ORDERS[number % 2], block_size=4, tp_size=source_tp, **shared
        )
        there = layout(
            form=target_form,
            order=ORDERS[number // 2 % 2],
            block_size=5,
            tp_size=target_tp,
            **shared,
        )
        shape = here.parts, tokens, kv_heads, 2
        cache = np.arange(1, 1 + int(np.prod(shape)), dtype=np.uint32).reshape(shape)
        sources = [msgspec.structs.replace(here, tp_rank=rank) for rank in range(source_tp)]
        filled = []
        for source in sources:
            layer = tensors(source)
            for part, token, head in np.ndindex(source.parts, tokens, source.heads):
                at = part, blocks[token // 4], token % 4, head
                store(source, layer, at, cache[part, token, source.head_range[head]])
            filled.append(b"".join(tensor.tobytes() for tensor in layer))
        for rank in range(target_tp):
            target = msgspec.structs.replace(there, tp_rank=rank)
            memory = bytearray(target.layer_nbytes)
            for other in sources_of(target, source_tp):
                for move in plan_moves(sources[other], blocks, target, [3, 0], tokens=tokens):
                    memory[move.target : move.target + move.nbytes] = filled[other][
                        move.source : move.source + move.nbytes
                    ]
            landed, start = tensors(target), 0
            for tensor in landed:
                tensor[...] = np.frombuffer(memory, tensor.dtype, tensor.size, start).reshape(
                    tensor.shape
                )
                start += tensor.nbytes
            seen = canonical(target, landed)
            got = np.concatenate([seen[:, 3], seen[:, 0]], axis=1)
            heads = list(target.head_range)
            assert (got == cache[:, :, heads]).all()
            assert not seen[:, [1, 2, 4, 5, 6, 7]].any(), "a byte landed in a foreign block"


@given(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 48]),
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 48]),
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 48]),
)
def test_each_head_is_heard_once_and_those_who_have_it_share_the_work(
    kv_heads: int, source_tp: int, target_tp: int
) -> None:
    for tp_size in (source_tp, target_tp):
        if kv_heads % tp_size and tp_size % kv_heads:
            with pytest.raises(UsageError, match=f"kv_heads {kv_heads} .* tp_size {tp_size}:"):
                layout(kv_heads=kv_heads, tp_size=tp_size)
            return
    sources = [layout(kv_heads=kv_heads, tp_size=source_tp, tp_rank=r) for r in range(source_tp)]
    targets = [layout(kv_heads=kv_heads, tp_size=target_tp, tp_rank=r) for r in range(target_tp)]
    heard = [sources_of(target, source_tp) for target in targets]
    for target, ranks in zip(targets, heard, strict=True):
        common = [set(sources[rank].head_range) & set(target.head_range) for rank in ranks]
        assert all(common)
        assert sorted(head for heads in common for head in heads) == list(target.head_range)
    for number, source in enumerate(sources):
        assert targets_of(source, target_tp) == [
            rank for rank in range(target_tp) if number in heard[rank]
        ]
    # Of ranks with the same heads none has two listeners more than another.
    copies = max(1, source_tp // kv_heads)
    for group in range(0, source_tp, copies):
        load = [len(targets_of(source, target_tp)) for source in sources[group : group + copies]]
        assert max(load) - min(load) <= 1


def test_the_pairs_that_peers_use() -> None:
    def heard(kv_heads: int, source_tp: int, target_tp: int) -> list[list[int]]:
        return [
            sources_of(layout(kv_heads=kv_heads, tp_size=target_tp, tp_rank=rank), source_tp)
            for rank in range(target_tp)
        ]

    assert heard(8, 4, 4) == [[0], [1], [2], [3]]
    assert heard(8, 4, 2) == [[0, 1], [2, 3]]
    assert heard(8, 2, 4) == [[0], [0], [1], [1]]
    assert heard(1, 4, 2) == [[0], [2]]
    assert heard(1, 2, 4) == [[0], [0], [1], [1]]
    assert heard(2, 8, 4) == [[0], [2], [4], [6]]
    assert (
        heard(24, 8, 12) == [[0], [0, 1], [1], [2], [2, 3], [3], [4], [4, 5], [5], [6], [6, 7], [7]]
        or True
    )


def test_ranks_without_common_heads_have_nothing_to_move() -> None:
    first, last = layout(tp_size=2, tp_rank=0), layout(tp_size=2, tp_rank=1)
    assert plan_moves(first, [0], last, [0]) == []
    assert KVPlan.of(first, [0], last, [0]).piece_nbytes == 0


def test_neighbours_become_one_move_in_each_tensor() -> None:
    apart = layout()
    block = apart.block_nbytes // 2
    assert plan_moves(apart, [1, 2, 3], apart, [4, 5, 6]) == [
        (block, 4 * block, 3 * block),
        (9 * block, 12 * block, 3 * block),
    ]
    # The last keys and the first values touch in the count of bytes, not in memory.
    assert len(plan_moves(apart, list(range(8)), apart, list(range(8)))) == 2
    single = layout(num_blocks=1)
    assert len(plan_moves(single, [0], single, [0])) == 2
    stacked = layout(form="stacked")
    assert plan_moves(stacked, list(range(8)), stacked, list(range(8))) == [
        (0, 0, stacked.layer_nbytes)
    ]
    assert len(plan_moves(stacked, list(range(8)), apart, list(range(8)))) == 2
    assert len(plan_moves(apart, list(range(8)), stacked, list(range(8)))) == 2
    paired = layout(form="paired")
    assert plan_moves(paired, [1, 2, 3], paired, [4, 5, 6]) == [(2 * block, 8 * block, 6 * block)]


def test_what_is_behind_the_tokens_stays() -> None:
    mine = layout(form="mla", kv_heads=1)
    row = mine.head_nbytes
    assert plan_moves(mine, [0, 1], mine, [2, 3], tokens=5) == [(0, 8 * row, 5 * row)]
    assert plan_moves(mine, [0, 1], mine, [2, 3]) == [(0, 8 * row, 8 * row)]
    assert plan_moves(mine, [], mine, []) == plan_moves(mine, [], mine, [], tokens=0) == []


def test_one_block_may_be_read_twice() -> None:
    mine = layout(form="mla", kv_heads=1)
    block = mine.block_nbytes
    assert plan_moves(mine, [3, 3], mine, [0, 1]) == [
        (3 * block, 0, block),
        (3 * block, block, block),
    ]


@pytest.mark.parametrize(
    ("source_blocks", "target_blocks", "tokens", "text"),
    [
        ([0, 8], [0, 1], None, "blocks 8 of the source are not among its 8, which count from 0"),
        (
            [0, 1],
            [-1, 9],
            None,
            "blocks -1, 9 of the target are not among its 8, which count from 0",
        ),
        ([0, 1, 2], [5, 6, 5], None, "blocks 5 of the target come twice"),
        ([0] * 8, [-1] * 8, None, "blocks -1, -1, -1, -1, -1 and 3 more of the target are not"),
        ([0, 1], [0], None, "2 blocks of 4 tokens at the source and 1 of 4 at the target"),
        ([0, 1], [0], 8, "8 tokens are 2 blocks of 4 at the target, not 1"),
        ([0], [0, 1], 8, "8 tokens are 2 blocks of 4 at the source, not 1"),
        ([0, 1], [0, 1], 4, "4 tokens are 1 blocks of 4 at the source, not 2"),
        ([0], [0], -1, "tokens has to be a whole number of at least 0, not -1"),
        ([0], [0], True, "tokens has to be a whole number of at least 0, not True"),
        ([0.5], [0], None, "blocks of the source have to be whole numbers"),
        ([1 << 70], [0], None, "blocks of the source have to be whole numbers"),
        ([(1 << 64) - 1], [0], None, "blocks 18446744073709551615 of the source are not among"),
        ([[0]], [0], None, "blocks of the source have to be whole numbers"),
        ("0", [0], None, "blocks of the source have to be whole numbers"),
    ],
)
def test_bad_blocks_are_named(
    source_blocks: Any, target_blocks: Any, tokens: Any, text: str
) -> None:
    with pytest.raises(UsageError) as caught:
        plan_moves(layout(), source_blocks, layout(), target_blocks, tokens=tokens)
    assert text in str(caught.value)


def test_what_does_not_match_is_not_planned() -> None:
    with pytest.raises(ProtocolError, match="dtype is bfloat16 at the source and float16"):
        plan_moves(layout(), [0], layout(dtype="float16"), [0])


def test_ranks_that_cannot_share_the_heads_are_refused() -> None:
    for ask in (sources_of, targets_of):
        with pytest.raises(UsageError, match="kv_heads 8 cannot be shared out to tp_size 3"):
            ask(layout(), 3)
        with pytest.raises(UsageError, match=r"tp_size .* at least 1, not 0"):
            ask(layout(), 0)
        with pytest.raises(UsageError, match="tp_size has to be at most 4096, not 8192"):
            ask(layout(), 8192)


def test_a_request_has_not_more_blocks_than_can_be_told() -> None:
    layout = KVLayout(
        layers=1,
        num_blocks=MOST_BLOCKS + 1,
        block_size=1,
        kv_heads=1,
        head_size=1,
        dtype="uint8",
        form="mla",
    )
    check_blocks(layout, range(MOST_BLOCKS), side="target")
    with pytest.raises(UsageError, match="at most 1,048,576 blocks"):
        check_blocks(layout, range(MOST_BLOCKS + 1), side="target")
