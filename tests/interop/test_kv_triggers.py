"""When a request's cache is sent, how much of it, and who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest

from omni_async.errors import ConfigError, UsageError
from omni_async.interop.vllm_omni.kv_triggers import (
    Companions,
    PrefillFinished,
    SpecialToken,
    blocks_to_send,
    criteria_of,
    is_warm_up,
    needs_transfer,
    tokens_to_send,
)


def test_criteria_of_a_deploy_file() -> None:
    assert criteria_of(None) is criteria_of({}) is None
    assert criteria_of({"type": "prefill_finished"}) == PrefillFinished(True)
    assert criteria_of(
        {"type": "special_token", "token_id": 7, "stop_after_transfer": False}
    ) == SpecialToken(7, False)


@pytest.mark.parametrize(
    "told",
    [
        {"type": "other"},
        {"token_id": 7},
        {"type": "special_token"},
        {"type": "special_token", "token_id": "7"},
        {"type": "special_token", "token_id": True},
        {"type": "special_token", "token_id": -1},
        {"type": "prefill_finished", "stop_after_transfer": "no"},
    ],
)
def test_criteria_that_make_no_sense(told: Any) -> None:
    with pytest.raises(ConfigError, match="kv_transfer_criteria"):
        criteria_of(told)


@pytest.mark.parametrize(
    ("computed", "placeholders", "sent"), [(9, 0, None), (10, 0, 10), (12, 0, 12), (11, 2, None), (12, 2, 10)]
)  # fmt: skip
def test_a_prompt_is_sent_when_it_has_been_computed(
    computed: int, placeholders: int, sent: int | None
) -> None:
    criteria = PrefillFinished()
    assert sent == tokens_to_send(
        criteria, prompt_tokens=10, computed_tokens=computed, placeholders=placeholders
    )


@pytest.mark.parametrize(
    ("new", "sent"),
    [((), None), ((1, 2), None), ((7,), 20), ((1, 7), 20), ((7, 1, 2), 18), ((7, 7), 19)],
)
def test_a_token_is_sent_up_to(new: tuple[int, ...], sent: int | None) -> None:
    criteria = SpecialToken(7)
    assert sent == tokens_to_send(criteria, prompt_tokens=10, computed_tokens=20, new_tokens=new)


def test_without_criteria_nothing_is_sent_early() -> None:
    assert tokens_to_send(None, prompt_tokens=1, computed_tokens=5, new_tokens=[7]) is None


def test_blocks_up_to_a_token() -> None:
    assert blocks_to_send([5, 6, 7, 8], 33, 16) == [5, 6, 7]
    assert blocks_to_send([5, 6], 32, 16) == [5, 6]
    assert blocks_to_send((5,), 1, 16) == [5]
    with pytest.raises(UsageError, match="need 3 blocks of 16, the request has 2"):
        blocks_to_send([5, 6], 33, 16)
    for tokens, size in ((0, 16), (-1, 16), (1, 0)):
        with pytest.raises(UsageError):
            blocks_to_send([5], tokens, size)


def test_who_needs_a_transfer() -> None:
    assert needs_transfer(None)
    assert needs_transfer({})
    assert needs_transfer({"omni_final_stage_id": 1})
    assert not needs_transfer({"omni_final_stage_id": 0})
    assert needs_transfer({"omni_final_stage_id": 0, "omni_force_kv_transfer": True})


def test_warm_ups() -> None:
    assert is_warm_up("dummy_req_id")
    assert is_warm_up("dummy_req_id/3")
    assert not is_warm_up("dummy_req_id3")
    assert not is_warm_up("r")


def test_a_parent_is_ready_when_all_are() -> None:
    family = Companions()
    family.expect("p", ["text", "img"])
    family.expect("alone")
    assert family.ready("alone") == "alone"
    assert family.ready("p") is None
    assert family.ready("img") is None
    assert family.ready("img") is None
    assert family.missing("p") == {"text"}
    assert family.ready("text") == "p"
    assert family.ready("text") is None
    assert family.missing("p") == frozenset()
    family.expect("p", ["text"])  # the next one of that name


def test_a_parent_fails_with_any_of_them() -> None:
    family = Companions()
    family.expect("p", ["text", "img"])
    assert family.ready("img") is None
    assert family.failed("text") == "p"
    assert family.ready("p") is None
    assert family.failed("nobody") is None
    family.drop("nobody")


def test_nobody_waits_twice() -> None:
    family = Companions()
    family.expect("p", ["text"])
    for parent, others in (
        ("p", []),
        ("q", ["text"]),
        ("text", []),
        ("q", ["q"]),
        ("q", ["x", "x"]),
    ):
        with pytest.raises(UsageError, match="twice"):
            family.expect(parent, others)
    assert family.missing("q") == frozenset()
