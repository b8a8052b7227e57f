"""``kv_transfer_params``: what each side is told, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from omni_async.errors import ProtocolError, UsageError
from omni_async.kv.control import (
    Peer,
    Registered,
    TransferParams,
    ZmqAddress,
    new_request_id,
    new_transfer_id,
    parse_params,
    prefilled_params,
    read_leg,
    read_on,
    write_legs,
)
from tests.kv.control.test_addresses import ADDRESSES

P = ZmqAddress("10.0.0.1", 6301, 6105)
D = ZmqAddress("::1", 7301, 7501)
ID = f"cmpl-{new_request_id(P, D)}-0-1a2b3c4d"
TX = f"tx-{'ab' * 16}"


def registered(role: Any, **changes: Any) -> Registered:
    address = P if role == "P" else D
    return Registered(
        type=role, http_address="h:1", zmq_address=str(address), transfer_mode="WRITE", **changes
    )


def known(params: Any, request_id: str = ID, **options: Any) -> TransferParams:
    found = parse_params(params, request_id, **options)
    assert found is not None
    return found


def test_both_legs_of_a_write() -> None:
    prefill, decode = write_legs(
        TX, registered("P", tp_size=2), registered("D", dp_size=4, tp_size=8), decode_dp_rank=3
    )
    assert prefill == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": 4,
        "remote_tp_size": 8,
        "remote_dp_rank": 3,
        "transfer_id": TX,
    }
    assert decode == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "transfer_id": TX,
        "remote_dp_size": 1,
        "remote_tp_size": 2,
    }
    to_prefill, to_decode = known(prefill), known(decode)
    assert to_prefill == TransferParams(TX, "prefill", Peer(D, 3, 4, 8))
    assert to_decode == TransferParams(TX, "decode", Peer(P, 0, 1, 2))
    assert to_decode.mode == "write"


def test_both_legs_of_a_read() -> None:
    to_prefill = known(read_leg(TX, registered("D", dp_size=2)), own_tp_size=4)
    assert to_prefill == TransferParams(TX, "prefill", Peer(D, 0, 2, 4))
    answer = prefilled_params(TX, [3, 4, 500], P, dp_rank=1, dp_size=2, tp_size=8, num_tokens=33)
    told = read_on(json.loads(json.dumps(answer)), registered("P", dp_size=2))
    to_decode = known(told, "an id without addresses")
    assert to_decode == TransferParams(
        TX, "decode", Peer(P, 1, 2, 8), (3, 4, 500), 33, "10.0.0.1:6301"
    )
    assert to_decode.mode == "read"
    assert read_on(None, registered("P")) is None


def test_what_prefill_answers_has_all_that_others_look_for() -> None:
    assert prefilled_params(TX, (7,), P, remote_request_id="r") == {
        "remote_request_id": "r",
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [7],
        "remote_engine_id": "10.0.0.1:6301",
        "remote_host": "10.0.0.1",
        "remote_handshake_port": 6301,
        "remote_notify_port": 6105,
        "remote_dp_size": 1,
        "remote_dp_rank": 0,
        "remote_tp_size": 1,
        "tp_size": 1,
        "transfer_id": TX,
    }
    for transfer_id, blocks in (("", [1]), (TX, [])):
        with pytest.raises(UsageError, match="at least one block"):
            prefilled_params(transfer_id, blocks, P)


@given(
    ADDRESSES,
    st.lists(st.integers(0, 1 << 20), min_size=1),
    st.integers(1, 16).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size))),
    st.integers(1, 16),
    st.none() | st.integers(1, 1 << 20),
)
def test_an_answer_comes_back(
    address: ZmqAddress, blocks: list[int], dp: tuple[int, int], tp: int, tokens: int | None
) -> None:
    assume(max(address.handshake, address.notify) + dp[1] * tp <= 1 << 16)  # ranks have ports
    transfer_id = new_transfer_id()
    answer = prefilled_params(
        transfer_id, blocks, address, dp_rank=dp[0], dp_size=dp[1], tp_size=tp, num_tokens=tokens
    )
    found = known(json.loads(json.dumps(answer)), "")
    peer = Peer(address, dp[0], dp[1], tp)
    assert found == TransferParams(
        transfer_id, "decode", peer, tuple(blocks), tokens, address.engine_id
    )


def test_requests_that_are_none_of_this() -> None:
    assert parse_params(None, ID) is None
    plain = {"do_remote_decode": False, "do_remote_prefill": None, "transfer_id": TX}
    assert parse_params(plain, ID) is None


def test_ids_differ_and_the_transfer_is_the_same() -> None:
    prefill, decode = write_legs(TX, registered("P"), registered("D"))
    here = known(prefill, f"cmpl-{new_request_id(P, D)}-0-11111111")
    there = known(decode, f"cmpl-{new_request_id(P, D)}-0-22222222")
    assert here.transfer_id == there.transfer_id == TX


@pytest.mark.parametrize("params", [{}, {"remote_dp_size": 1}, {"transfer_id": None}])
def test_no_shared_id_is_refused_instead_of_waiting(params: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="prefill instance has kept no cache for it"):
        parse_params(params, ID)
    with pytest.raises(ProtocolError, match="has no transfer_id"):
        parse_params({**params, "do_remote_decode": True}, ID)


def leg(**changes: Any) -> dict[str, Any]:
    return {**write_legs(TX, registered("P"), registered("D"))[1], **changes}


def test_missing_and_null_and_numbers_as_text() -> None:
    bare = {"do_remote_prefill": True, "transfer_id": TX}
    assert known(bare, own_tp_size=2).peer == Peer(P, 0, 1, 2)
    nothing = leg(remote_dp_size=None, remote_tp_size=None, remote_dp_rank=None, tp_size="4")
    assert known(nothing).peer == Peer(P, 0, 1, 4)
    told = leg(remote_host="h", remote_handshake_port="1", remote_notify_port="2")
    assert known(told).peer.address == ZmqAddress("h", 1, 2)
    half = leg(remote_host="h", remote_handshake_port="1")
    assert known(half).peer.address == P
    assert known(leg(remote_block_ids=[[1, 2]])).block_ids == (1, 2)
    assert known(leg(remote_block_ids=[])).block_ids == ()


def test_a_pinned_rank_wins() -> None:
    assert known(leg(remote_dp_rank=1, remote_dp_size=2, remote_dp_rank_override=5)).peer == (
        Peer(P, 5, 6, 1)
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"remote_tp_size": 0}, "remote_tp_size has to be a whole number of at least 1, not 0"),
        ({"remote_dp_size": -1}, "remote_dp_size"),
        ({"remote_dp_size": True}, "remote_dp_size"),
        ({"remote_dp_rank": 1}, "there is no such rank"),
        ({"remote_dp_rank": 1.0}, "remote_dp_rank"),
        ({"remote_block_ids": "12"}, "a list of numbers of blocks, not '12'"),
        ({"remote_block_ids": [1, -1]}, "a list of numbers of blocks"),
        ({"remote_block_ids": [1, "2"]}, "a list of numbers of blocks"),
        ({"remote_block_ids": [[1], [2]]}, "several are not supported"),
        ({"do_remote_decode": True}, "do_remote_decode and do_remote_prefill"),
        ({"do_remote_prefill": 1}, "true or false"),
        ({"transfer_id": 5}, "transfer_id has to be text"),
        ({"transfer_id": ""}, "no transfer_id"),
        (
            {"remote_host": "a b", "remote_handshake_port": 1, "remote_notify_port": 2},
            "no host",
        ),
        (
            {"remote_host": "a", "remote_handshake_port": 1, "remote_notify_port": 70000},
            "no port",
        ),
        (
            {
                "remote_host": "a",
                "remote_handshake_port": 65535,
                "remote_notify_port": 1,
                "remote_tp_size": 2,
            },
            "handshake: rank dp 0, tp 1 would listen at port 65536, 65535 being the first",
        ),
        (
            {
                "remote_host": "a",
                "remote_handshake_port": 1,
                "remote_notify_port": 65535,
                "remote_dp_rank": 1,
                "remote_dp_size": 2,
            },
            "notify: rank dp 1, tp 0 would listen at port 65536",
        ),
        ({"remote_dp_rank_override": 90000}, "handshake: rank dp 90000"),
        ({"transfer_id": "x" * 1025}, r"transfer_id has to be 1 to 1,024 bytes .*\.\.\.$"),
        ({"transfer_id": "é" * 513}, "transfer_id has to be 1 to 1,024 bytes"),
        ({"transfer_id": "\ud800"}, "transfer_id has to be 1 to 1,024 bytes"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as caught:
        parse_params(leg(**changes), ID)
    assert len(str(caught.value)) < 250


def test_nobody_tells_where_the_peer_is() -> None:
    with pytest.raises(ProtocolError, match="nobody tells where the other instance is"):
        parse_params(leg(), "cmpl-1")
    with pytest.raises(ProtocolError, match="has to be an object"):
        parse_params([], ID)  # type: ignore[arg-type]


@given(
    st.dictionaries(
        st.sampled_from([*leg(), "remote_host", "remote_hosts", "remote_num_tokens", "tp_size"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_anything_is_params_or_refused(params: dict[str, Any]) -> None:
    with contextlib.suppress(ProtocolError):
        parse_params(params, ID)


def test_where_the_ranks_of_a_peer_are() -> None:
    one = Peer(P, 2, 4, 8)
    assert one.handshake_at(3) == ("10.0.0.1", 6301 + 19)
    assert one.notify_at(0) == ("10.0.0.1", 6105 + 16)
    with pytest.raises(UsageError):
        one.notify_at(8)
    pods = known(
        leg(
            remote_dp_size=4,
            remote_dp_rank=3,
            remote_tp_size=2,
            remote_dp_size_local=2,
            remote_hosts=["a", "b"],
        )
    ).peer
    assert pods.notify_at(1) == ("b", 6105 + 3)
    short = known(leg(remote_dp_size=4, remote_dp_rank=3, remote_dp_size_local=2, remote_hosts=7))
    assert short.peer.notify_at(0) == ("10.0.0.1", 6105 + 1)
