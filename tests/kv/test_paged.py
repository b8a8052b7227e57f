"""One request's tokens out of paged caches of every form, against plain indexing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async.errors import ConfigError, UsageError
from omni_async.interop.vllm_omni.kv_topology import HeadSlice
from omni_async.kv.paged import Extraction, blocks_of

from .paged_samples import FORMS, paged, same, tokens_of


def extracted(extraction: Extraction) -> tuple[list[Any], list[Any]]:
    made: dict[tuple[bool, int], Any] = {}
    for keys, specs in ((True, extraction.keys), (False, extraction.values)):
        for layer, spec in enumerate(specs):
            if spec is not None:
                made[keys, layer] = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))

    def place(keys: bool, layer: int) -> Any:
        return made[keys, layer].view(-1).view(torch.uint8)

    extraction.into(place)
    layers = range(len(extraction.keys))
    return [made.get((True, i)) for i in layers], [made.get((False, i)) for i in layers]


@settings(deadline=None, max_examples=80)
@given(
    form=st.sampled_from(FORMS),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "uint8"]),
    block_size=st.sampled_from([1, 2, 16]),
    heads=st.sampled_from([1, 2, 4]),
    table=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    data=st.data(),
)
def test_every_form_gives_the_tokens(
    form: str, dtype: str, block_size: int, heads: int, table: list[int], data: st.DataObject
) -> None:
    caches = paged(
        form, layers=2, block_size=block_size, heads=heads, size=3, dtype=getattr(torch, dtype)
    )
    tokens = data.draw(st.integers(1, len(table) * block_size))
    keys, values = extracted(Extraction(caches, table, tokens, block_size))
    wanted = tokens_of(form, caches, table, tokens)
    assert same(keys, wanted[0])
    assert same(values, wanted[1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_share_of_the_heads(form: str, number: int) -> None:
    caches = paged(form, heads=4)
    taken = Extraction(caches, [3, 1], 20, 16, share=HeadSlice(number, 2))
    wanted = tokens_of(form, caches, [3, 1], 20)
    for found, whole in zip(extracted(taken), wanted, strict=True):
        assert same(found, [tensor[:, 2 * number : 2 * number + 2] for tensor in whole])


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="3 KV heads of a rank do not divide among 2"):
        Extraction(paged("stacked", heads=3), [0], 1, 16, share=HeadSlice(0, 2))
    latent = [(torch.zeros(4, 16, 8), torch.zeros(4, 16, 8))]
    with pytest.raises(UsageError, match="no heads to share"):
        Extraction(latent, [0], 1, 16, share=HeadSlice(0, 2))


def test_two_heads_do_not_make_packed_look_stacked() -> None:
    blocks = blocks_of(torch.zeros(2, 2, 16, 8), 16)
    assert tuple(blocks.keys.shape) == tuple(blocks.values.shape) == (2, 16, 2, 4)


def test_layers_that_are_said_to_be_absent() -> None:
    caches = paged("stacked", layers=3)
    caches[1] = None
    taken = Extraction(caches, [0], 5, 16, absent_layers=[1])
    keys, values = extracted(taken)
    assert keys[1] is values[1] is None
    assert keys[2] is not None
    with pytest.raises(UsageError, match="layer 1 is a NoneType"):
        Extraction(caches, [0], 5, 16)
    with pytest.raises(UsageError, match="without a single layer"):
        Extraction([None], [0], 5, 16, absent_layers=[0])


CACHE = torch.zeros(2, 4, 16, 2, 8)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (torch.zeros(3, 4, 16, 2, 8), "is no cache"),
        (torch.zeros(5), "is no cache"),
        (torch.zeros(2, 4, 8, 2, 8), "not of 16 tokens"),
        ((CACHE[0],), "no pair"),
        ((CACHE[0], None), "no pair"),
        ((CACHE[0], CACHE[1][:3]), "4 blocks of keys on cpu, 3 of values"),
        ((torch.zeros(4), torch.zeros(4)), "has blocks of shape"),
        ("cache", "is a str"),
    ],
)
def test_what_is_no_cache(layer: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Extraction([CACHE, layer], [0], 1, 16)


@pytest.mark.parametrize(
    ("table", "tokens", "why"),
    [
        ([4], 1, "block 4 of layer 0, which has 4"),
        ([-1], 1, "block -1 of layer 0"),
        ([0], 17, "need 2 blocks of 16, the request has 1"),
        ([], 1, "need 1 blocks"),
        ([0], 0, "0 tokens"),
    ],
)
def test_blocks_that_are_not_there(table: list[int], tokens: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Extraction([CACHE], table, tokens, 16)


def test_blocks_behind_the_last_token_are_not_looked_at() -> None:
    assert Extraction([CACHE], [0, 1, 99], 20, 16).block_ids == [0, 1]
