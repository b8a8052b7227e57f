"""Layouts: where bytes are, what an engine's tensors tell, what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given

from omni_async import ProtocolError, UsageError
from omni_async.kv.layout import ITEMSIZES, KVLayout, match, share

from .caches import FORMS, Case, cases, tensors, vectors

USUAL: dict[str, Any] = {
    "layers": 2,
    "num_blocks": 6,
    "block_size": 4,
    "kv_heads": 8,
    "head_size": 3,
    "dtype": "float32",
}


def layout(**values: Any) -> KVLayout:
    return KVLayout(**{**USUAL, **values})


@given(cases())
def test_strides_are_those_of_the_tensors(case: Case) -> None:
    mine = case.source
    places = vectors(mine) * mine.head_nbytes
    strides = mine.strides
    for axis, stride in enumerate(strides):
        steps = np.diff(places, axis=axis)
        assert (steps == stride).all()
    assert mine.layer_nbytes == mine.num_blocks * mine.block_nbytes
    layer = tensors(mine)
    assert mine.layer_nbytes == sum(tensor.nbytes for tensor in layer)
    assert mine.tensor_nbytes == tuple(tensor.nbytes for tensor in layer)
    assert mine.block_nbytes * mine.num_blocks == places.size * mine.head_nbytes
    assert (mine.parts, mine.num_blocks, mine.block_size, mine.heads) == places.shape


@given(cases())
def test_a_layout_travels(case: Case) -> None:
    mine = case.source
    assert msgspec.json.decode(msgspec.json.encode(mine), type=KVLayout) == mine
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(mine), type=KVLayout) == mine
    assert hash(mine) == hash(msgspec.structs.replace(mine))


def test_a_layout_that_makes_no_sense_does_not_arrive() -> None:
    told = msgspec.to_builtins(layout()) | {"tp_size": 3}
    with pytest.raises(msgspec.ValidationError, match=r"kv_heads 8 .* tp_size 3"):
        msgspec.convert(told, KVLayout)


@given(cases())
def test_an_engines_tensors_are_recognised(case: Case) -> None:
    mine = case.source
    layer = [tensor.view(mine.dtype) for tensor in tensors(mine)]
    caches = [tuple(layer) if mine.form == "split" else layer[0]] * 2
    assert mine == KVLayout.of(
        caches,
        kv_heads=mine.kv_heads,
        block_size=mine.block_size,
        form=mine.form,
        order=mine.order,
        tp_size=mine.tp_size,
        tp_rank=mine.tp_rank,
    )


def test_of_a_shape_only_what_it_leaves_open_has_to_be_said() -> None:
    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.float16)

    def seen(cache: Any, **known: Any) -> tuple[Any, ...]:
        it = KVLayout.of([cache], **known)
        return it.form, it.order, it.num_blocks, it.block_size, it.kv_heads, it.head_size

    pair = (zeros(9, 16, 4, 8), zeros(9, 16, 4, 8))
    assert seen(pair, kv_heads=4) == ("split", "token_head", 9, 16, 4, 8)
    assert seen(pair, block_size=4) == ("split", "head_token", 9, 4, 16, 8)
    assert seen(pair, order="token_head") == ("split", "token_head", 9, 16, 4, 8)
    assert seen(pair, kv_heads=8, tp_size=2)[3:5] == (16, 8)
    assert seen(zeros(2, 9, 4, 16, 8), kv_heads=4) == ("stacked", "head_token", 9, 16, 4, 8)
    assert seen(zeros(9, 2, 4, 16, 8), kv_heads=4) == ("paired", "head_token", 9, 16, 4, 8)
    assert seen(zeros(2, 2, 4, 16, 8), kv_heads=4, form="paired")[:3] == ("paired", "head_token", 2)
    assert seen(zeros(2, 2, 4, 16, 8), kv_heads=4, form="stacked")[:3] == (
        "stacked",
        "head_token",
        2,
    )
    assert seen(zeros(9, 4, 16, 8)) == ("packed", "head_token", 9, 16, 4, 4)
    assert seen(zeros(9, 16, 4, 8), kv_heads=4) == ("packed", "token_head", 9, 16, 4, 4)
    assert seen(zeros(9, 16, 8)) == ("mla", "token_head", 9, 16, 1, 8)
    assert KVLayout.of([zeros(9, 16, 8)], tp_size=4, tp_rank=3).heads == 1
    assert seen(zeros(2, 9, 1, 1, 8))[1] == "token_head"


def test_permuted_axes_are_taken_as_they_lie() -> None:
    cache = np.zeros((2, 9, 4, 16, 8), np.float32).swapaxes(2, 3)  # [2, N, B, H, D] to look at
    assert cache.shape == (2, 9, 16, 4, 8)
    assert KVLayout.of([cache], kv_heads=4).order == "head_token"
    blocks_first = np.zeros((9, 2, 16, 4, 8), np.float32).swapaxes(0, 1)
    assert KVLayout.of([blocks_first], kv_heads=4).form == "paired"


def test_torch_tensors_are_recognised() -> None:
    torch = pytest.importorskip("torch")
    cache = torch.zeros(2, 9, 16, 4, 8, dtype=torch.bfloat16)
    mine = KVLayout.of([cache, cache], kv_heads=4)
    assert (mine.layers, mine.form, mine.dtype) == (2, "stacked", "bfloat16")
    assert mine.tensor_nbytes == (cache.nbytes,)
    assert KVLayout.of([cache.permute(0, 1, 3, 2, 4)], kv_heads=4).order == "token_head"
    keys, values = cache
    assert KVLayout.of([(keys, values)], kv_heads=4).form == "split"
    with pytest.raises(UsageError, match="gaps"):
        KVLayout.of([cache[:, :, ::2]], kv_heads=4)
    for name, nbytes in ITEMSIZES.items():
        assert getattr(torch, name).itemsize == nbytes


@pytest.mark.parametrize(
    ("caches", "known", "text"),
    [
        ([], {}, "one layer at least"),
        (
            [(9, 16, 4, 8), (9, 16, 4, 6)],
            {},
            "layer 0 is float32[9, 16, 4, 8], layer 1 is float32[9,",
        ),
        ([(9, 16)], {}, "float32[9, 16] is no KV cache of any form"),
        ([(9, 16, 8)], {"form": "packed"}, "float32[9, 16, 8] is no KV cache of form packed"),
        ([(3, 3, 4, 16, 8)], {"kv_heads": 4}, "is no KV cache of any form"),
        ([(2, 2, 4, 16, 8)], {"kv_heads": 4}, "may be stacked or paired: say which, by form"),
        ([(2, 9, 4, 4, 8)], {"kv_heads": 4}, "say which, by order"),
        ([(2, 9, 4, 16, 8)], {}, "say which, by order"),
        ([(2, 9, 4, 16, 8)], {"kv_heads": 5}, "has no blocks of any tokens and 5 heads"),
        ([(2, 9, 4, 16, 8)], {"block_size": 8}, "has no blocks of 8 tokens and any heads"),
        (
            [(2, 9, 4, 16, 8)],
            {"kv_heads": 4, "order": "token_head"},
            "4 heads in the order token_head",
        ),
        (
            [(2, 9, 4, 16, 8)],
            {"tp_size": 2},
            "kv_heads, of the whole model, is needed with tp_size 2",
        ),
        ([(9, 4, 16, 7)], {"kv_heads": 4}, "a key and a value of the same size"),
        (
            [(9, 16, 8)],
            {"block_size": 8},
            "blocks of 16 tokens and has kv_heads 1, not block_size 8",
        ),
        ([(9, 16, 8)], {"kv_heads": 2}, "not block_size None and kv_heads 2"),
        ([(0, 16, 8)], {}, "a cache tensor of layer 0 is empty: shape (0, 16, 8)"),
    ],
)
def test_what_an_engine_has_may_be_no_cache(caches: Any, known: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        KVLayout.of([np.zeros(shape, np.float32) for shape in caches], **known)
    assert text in str(caught.value)


def test_tensors_of_a_layer_are_alike_and_one_or_two() -> None:
    keys = np.zeros((9, 16, 4, 8), np.float32)
    with pytest.raises(UsageError, match=r"keys and values of layer 0 differ: .*float32.*float64"):
        KVLayout.of([(keys, keys.astype(np.float64))], kv_heads=4)
    with pytest.raises(UsageError, match="layer 1 has 3 tensors"):
        KVLayout.of([(keys, keys), (keys, keys, keys)], kv_heads=4)
    with pytest.raises(UsageError, match="cache tensor of layer 1 has gaps"):
        KVLayout.of([(keys, keys), (keys, np.zeros((9, 16, 8, 8))[:, :, ::2])], kv_heads=4)
    with pytest.raises(UsageError, match=r"dtype has to be one of bfloat16, .* not 'complex64'"):
        KVLayout.of([keys.astype(np.complex64)], kv_heads=4)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        *(
            ({name: bad}, f"{name} has to be a whole number of at least 1, not {bad!r}")
            for name in ("layers", "num_blocks", "block_size", "kv_heads", "head_size", "tp_size")
            for bad in (0, -1, True, 1.0, "1")
        ),
        ({"dtype": "float8"}, "dtype has to be one of bfloat16, "),
        ({"form": "flat"}, "form has to be one of split, stacked, paired, packed, mla, not 'flat'"),
        ({"order": "NHD"}, "order has to be one of token_head, head_token, not 'NHD'"),
        ({"form": "mla"}, "a cache of latents has kv_heads 1, not 8"),
        ({"tp_size": 3}, "kv_heads 8 cannot be shared out to tp_size 3"),
        ({"tp_size": 12}, "kv_heads 8 cannot be shared out to tp_size 12"),
        ({"tp_size": 2, "tp_rank": 2}, "tp_rank has to be one of tp_size 2, from 0, not 2"),
        ({"tp_rank": -1}, "tp_rank has to be one of tp_size 1, from 0, not -1"),
        ({"num_blocks": 1 << 60}, "bytes is too large"),
    ],
)
def test_numbers_that_make_no_sense_are_named(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        layout(**values)
    assert text in str(caught.value)


def test_heads_are_shared_out_in_order() -> None:
    assert [list(share(4, 2, rank)) for rank in range(2)] == [[0, 1], [2, 3]]
    assert [list(share(2, 4, rank)) for rank in range(4)] == [[0], [0], [1], [1]]
    assert [list(share(1, 2, rank)) for rank in range(2)] == [[0], [0]]
    assert layout(tp_size=4, tp_rank=3).head_range == range(6, 8)
    assert layout(tp_size=16, tp_rank=15).heads == 1


@pytest.mark.parametrize("form", FORMS)
def test_the_order_is_never_left_open(form: Any) -> None:
    mine = layout(form=form, kv_heads=1)
    assert mine.order == ("head_token" if form == "packed" else "token_head")
    assert layout(form="mla", kv_heads=1, order="head_token") == layout(form="mla", kv_heads=1)


@pytest.mark.parametrize(
    "same",
    [
        {"block_size": 7},
        {"num_blocks": 1},
        {"form": "packed"},
        {"order": "head_token"},
        {"tp_size": 8, "tp_rank": 5},
    ],
)
def test_caches_that_lie_differently_match(same: dict[str, Any]) -> None:
    match(layout(), layout(**same))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"dtype": "float16"}, "dtype is float32 at the source and float16 at the target"),
        ({"layers": 3}, "layers is 2 at the source and 3 at the target"),
        ({"kv_heads": 4}, "kv_heads is 8 at the source and 4 at the target"),
        ({"head_size": 4}, "head_size is 3 at the source and 4 at the target"),
        (
            {"form": "mla", "kv_heads": 1},
            "form is split at the source and mla at the target, kv_heads is 8 at the source and 1 at",
        ),
        (
            {"dtype": "uint8", "layers": 1},
            "dtype is float32 at the source and uint8 at the target, layers is 2",
        ),
    ],
)
def test_what_cannot_match_is_told_with_both_values(other: dict[str, Any], text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        match(layout(), layout(**other), peer="decode-0")
    assert text in str(caught.value)
    assert caught.value.peer == "decode-0"
    with pytest.raises(ProtocolError):
        match(layout(**other), layout())
