"""Copies of pieces, against the byte mapping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from omni_async import UsageError
from omni_async.kv import gather as module
from omni_async.kv.gather import LARGE, carry, gather, scatter
from omni_async.kv.layout import KVLayout
from omni_async.kv.plan import KVPlan

from .caches import Array, Case, addresses, cases, mapping, tensors

EXAMPLES = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
EDGE = 64


def filled(layout: KVLayout, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 256, tensor.nbytes, np.uint8).view(tensor.dtype).reshape(tensor.shape)
        for tensor in tensors(layout)
    ]


def flat(layer: list[Array]) -> Array:
    return np.concatenate([tensor.ravel().view(np.uint8) for tensor in layer])


def check(case: Case) -> None:
    source, source_blocks, target, target_blocks, tokens = case
    plan = KVPlan.of(source, source_blocks, target, target_blocks, tokens=tokens)
    wanted = mapping(*case)
    ours = filled(source, 1)
    before = flat(filled(target, 2))
    expected = np.where(wanted >= 0, flat(ours)[wanted], before)
    untouched = flat(ours)

    buffer = np.full(plan.nbytes + 2 * EDGE, 0x5A, np.uint8)
    gather(plan, addresses(ours), buffer.ctypes.data + EDGE)
    assert (buffer[EDGE : EDGE + plan.nbytes] == flat(ours)[wanted[wanted >= 0]]).all()
    assert (buffer[:EDGE] == 0x5A).all()
    assert (buffer[EDGE + plan.nbytes :] == 0x5A).all()

    theirs = filled(target, 2)
    scatter(plan, addresses(theirs), buffer.ctypes.data + EDGE)
    assert (flat(theirs) == expected).all()

    theirs = filled(target, 2)
    carry(plan, addresses(ours), addresses(theirs))
    assert (flat(theirs) == expected).all()
    assert (flat(ours) == untouched).all()


@EXAMPLES
@given(cases())
def test_pieces_go_by_index(case: Case) -> None:
    check(case)


@EXAMPLES
@given(cases())
def test_pieces_go_by_index_in_several_rounds(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(module, "_ON_THE_WAY", 24)
    check(case)


@EXAMPLES
@given(cases())
def test_large_pieces_go_one_by_one(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(module, "LARGE", 0)
    check(case)


@pytest.mark.parametrize("form", ["split", "stacked"])
def test_pieces_above_the_border_and_below_it(form: Any) -> None:
    shared: dict[str, Any] = {"layers": 1, "num_blocks": 9, "kv_heads": 2, "dtype": "uint8"}
    for head_size in (LARGE // 8 - 1, LARGE // 8, LARGE // 8 + 1):
        mine = KVLayout(block_size=4, head_size=head_size, form=form, **shared)
        check(Case(mine, [7, 0, 4], mine, [1, 8, 3], 12))


def test_a_layer_has_the_tensors_of_its_form() -> None:
    shared: dict[str, Any] = {"layers": 1, "num_blocks": 2, "kv_heads": 2, "dtype": "uint8"}
    for head_size in (8, LARGE):
        pair = KVLayout(block_size=4, head_size=head_size, **shared)
        one = KVLayout(block_size=4, head_size=head_size, form="stacked", **shared)
        plan = KVPlan.of(pair, [0], one, [0])
        with pytest.raises(UsageError, match="a layer has 2 tensors here, not 1"):
            gather(plan, [0], 0)
        with pytest.raises(UsageError, match="a layer has 1 tensors here, not 2"):
            scatter(plan, [0, 0], 0)
        with pytest.raises(UsageError, match="a layer has 2 tensors here, not 3"):
            carry(plan, [0, 0, 0], [0])
        with pytest.raises(UsageError, match="a layer has 1 tensors here, not 0"):
            carry(plan, [0, 0], [])
