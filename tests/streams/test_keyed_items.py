"""Keys and envelopes of streams over a store."""

from __future__ import annotations

from typing import Any

import pytest

from omni_async.errors import ProtocolError, UsageError
from omni_async.model import KEY_LIMIT, TransferKey
from omni_async.transport.streams.keyed_items import Item, Kind, checked_where, item_key, item_of


def test_keys_are_request_stage_and_number() -> None:
    assert item_key(TransferKey("2", "3", "req_7"), 11) == "req_7_2_11"


def test_keys_of_two_requests_on_an_edge_never_meet() -> None:
    requests = ["r", "r_0", "r_0_0", "r_0_1", "r_"]
    keys = [item_key(TransferKey("0", "1", r), n) for r in requests for n in range(12)]
    assert len(set(keys)) == len(keys)


def test_a_request_id_that_leaves_no_room_for_numbers_is_refused() -> None:
    assert checked_where(TransferKey("0", "1", "r" * (KEY_LIMIT - 20))).from_stage == "0"
    with pytest.raises(UsageError):
        checked_where(TransferKey("0", "1", "r" * (KEY_LIMIT - 4)))


@pytest.mark.parametrize(
    "value",
    [
        (7, 0, {"any": "thing"}, 1, 2),
        (7, 1, None, 1, 2),
        (7, 2, None, 1, 2),
        (7, 2, "why", 0, 0),
    ],
)
def test_items_are_read_back(value: tuple[Any, ...]) -> None:
    item = item_of(value, "k")
    assert tuple(item) == value
    assert isinstance(item, Item)
    assert isinstance(item.kind, Kind)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"bytes",
        [7, 0, None, 1, 2],
        (7, 0, None, 1),
        (7, 3, None, 1, 2),
        (7, -1, None, 1, 2),
        (7, True, None, 1, 2),
        ("7", 0, None, 1, 2),
        (7, 0, None, None, 2),
        (7, 2, 5, 1, 2),
    ],
)
def test_what_is_no_item_is_told_by_its_key(value: Any) -> None:
    with pytest.raises(ProtocolError, match="'r_0_3' is no item"):
        item_of(value, "r_0_3")
