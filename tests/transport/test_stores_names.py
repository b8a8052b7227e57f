"""Names in a store: two keys share one only when they are one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omni_async.model import Endpoint, TransferKey
from omni_async.transport.stored.names import Names, plain, suffix

SEPARATORS = ("@", ":")
# Few characters, among them all that mean something: random texts meet often.
TEXT = st.text("ab01@:_~%\0é", min_size=1, max_size=6)
ROUTE = st.tuples(TEXT, TEXT, TEXT, TEXT | st.just("default"), st.integers(0, 2), st.integers(0, 2))
Route = tuple[str, str, str, str, int, int]


def routed(where: TransferKey, separator: str, namespace: str, rank: int, replica: int) -> str:
    return where.key + suffix(*where.edge, separator, namespace, rank, replica)


def called(route: Route, separator: str) -> str:
    key, sender, receiver, namespace, rank, replica = route
    return routed(TransferKey(sender, receiver, key), separator, namespace, rank, replica)


@given(ROUTE, ROUTE, st.sampled_from(SEPARATORS))
@example(("k@0_1", "0", "1", "default", 0, 0), ("k", "0", "1", "0_1", 0, 0), "@")
@example(("k", "0", "1", "a", 0, 0), ("k@0_1", "0", "1", "default", 0, 0), "@")
@example(("k", "0~1~0", "1", "a", 0, 0), ("k", "0", "1", "a", 1, 0), "@")
@example(("k", "0_1", "2", "a", 0, 0), ("k", "0", "1_2", "a", 0, 0), ":")
@example(("k", "0", "1", "a", 1, 0), ("k", "0", "1", "a", 0, 1), ":")
@example(("k", "%40", "1", "a", 0, 0), ("k", "@", "1", "a", 0, 0), "@")
def test_two_routes_never_share_a_name(one: Route, other: Route, separator: str) -> None:
    assert (called(one, separator) == called(other, separator)) == (one == other)


@given(ROUTE, st.sampled_from(SEPARATORS))
def test_the_key_stands_in_front_as_it_is(route: Route, separator: str) -> None:
    assert called(route, separator).startswith(route[0] + separator)


@pytest.mark.parametrize("separator", SEPARATORS)
def test_the_usual_name_is_the_documented_one(separator: str) -> None:
    where = TransferKey("0", "1", "req-1")
    assert routed(where, separator, "default", 0, 0) == f"req-1{separator}0_1"
    assert routed(where, separator, "default", 0, 0) == plain(where, separator)
    assert routed(where, separator, "prod", 1, 2) == f"req-1{separator}0~1~2_1{separator}prod"


@given(ROUTE, st.sampled_from(SEPARATORS))
def test_both_ends_of_one_rank_call_it_alike(route: Route, separator: str) -> None:
    key, sender, receiver, namespace, rank, replica = route
    where = TransferKey(sender, receiver, key)
    puts = Names(Endpoint(namespace, sender, rank, replica), "sender", separator)
    gets = Names(Endpoint(namespace, receiver, rank, replica), "receiver", separator)
    assert puts(where) == gets(where) == called(route, separator)


@given(ROUTE, st.integers(0, 2), st.integers(0, 2))
def test_a_receiver_asks_for_the_sender_it_was_told(route: Route, rank: int, replica: int) -> None:
    key, sender, receiver, namespace, own_rank, own_replica = route
    where = TransferKey(sender, receiver, key)
    gets = Names(Endpoint(namespace, receiver, own_rank, own_replica), "receiver", "@")
    gets.expect(sender, rank, replica)
    assert gets(where) == routed(where, "@", namespace, rank, replica)
    other = TransferKey(sender + "x", receiver, key)
    assert gets(other) == routed(other, "@", namespace, own_rank, own_replica)
