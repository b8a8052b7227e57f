"""The side channel of vLLM-Omni's Mooncake connector, byte by byte."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async.errors import ProtocolError
from omni_async.interop.vllm_omni import words
from omni_async.interop.vllm_omni.words import Info, Malformed, Pull, Query
from omni_async.model import TransferKey

KEY = TransferKey("0", "1", "r1_0_0")
KINDS = (Query, Pull, Malformed)
encode = msgspec.msgpack.encode

# Written down from the reference of its release 0.30.0.
QUERY = bytes.fromhex("71756572795f696e666f81aa726571756573745f6964aa72315f305f3040305f31")
INFO = bytes.fromhex(
    "83aa726571756573745f6964aa72315f305f3040305f31a9646174615f73697a65cd1000"
    "ac69735f666173745f70617468c2"
)
PULL = bytes.fromhex(
    "85af72656d6f74655f686f73746e616d65a831302e302e302e32ab72656d6f74655f706f7274cd3039"
    "aa726571756573745f6964aa72315f305f3040305f31a96473745f6164647273"
    "91cf00007f0000001000a76c656e6774687391cd1000"
)
RAW: dict[str, Any] = {
    "remote_hostname": "10.0.0.2",
    "remote_port": 12345,
    "request_id": "k@0_1",
    "dst_addrs": [0x1000],
    "lengths": [64],
}


def test_the_exact_bytes() -> None:
    assert words.query(KEY) == QUERY
    assert words.info("r1_0_0@0_1", 4096, False) == INFO
    assert words.pull(KEY, ("10.0.0.2", 12345), 0x7F0000001000, 4096) == PULL


def test_they_are_understood() -> None:
    assert words.request(QUERY) == Query("r1_0_0@0_1")
    pull = words.request(PULL)
    assert pull == Pull("10.0.0.2", 12345, "r1_0_0@0_1", [0x7F0000001000], [4096])
    assert isinstance(pull, Pull)
    assert pull.session == "10.0.0.2:12345"
    assert words.found(INFO) == Info("r1_0_0@0_1", 4096, False)
    assert words.found(b"info_not_found") is None
    assert words.done(b"trans_done")
    assert not words.done(b"trans_error")


def test_what_is_new_in_a_later_release_is_passed_over() -> None:
    assert words.request(encode({**RAW, "version": 2})) == words.request(encode(RAW))


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_every_key_is_among_its_readings(from_stage: str, to_stage: str, key: str) -> None:
    where = TransferKey(from_stage, to_stage, key)
    found = list(words.readings(words.routed(where), from_stage))
    assert where in found
    assert len(set(found)) == len(found)
    assert all(words.routed(reading) == words.routed(where) for reading in found)


def test_keys_with_the_signs_between_them() -> None:
    assert list(words.readings("a@0_1@0_2", "0")) == [
        TransferKey("0", "2", "a@0_1"),
        TransferKey("0", "1@0_2", "a"),
    ]
    assert list(words.readings("r1_0_0@0_1", "0")) == [KEY]
    for nothing in ("", "@0_1", "k@0_", "k@1_2", "k", "@", "k@0", "0_1"):
        assert list(words.readings(nothing, "0")) == []


MALFORMED_PULLS = [
    {"remote_hostname": ""},
    {"remote_hostname": "a b"},
    {"remote_hostname": "a/b"},
    {"remote_hostname": "a\0b"},
    {"remote_hostname": "a" * 256},
    {"remote_hostname": 7},
    {"remote_port": 0},
    {"remote_port": 65536},
    {"remote_port": -1},
    {"remote_port": 1.5},
    {"remote_port": "7"},
    {"request_id": ""},
    {"request_id": "k" * 5000},
    {"request_id": b"k@0_1"},
    {"request_id": None},
    {"dst_addrs": []},
    {"dst_addrs": [1, 2]},
    {"dst_addrs": [0]},
    {"dst_addrs": [-4096]},
    {"dst_addrs": 4096},
    {"dst_addrs": [4096.0]},
    {"dst_addrs": [(1 << 64) - 1], "lengths": [2]},
    {"lengths": []},
    {"lengths": [0]},
    {"lengths": [-1]},
    {"lengths": [64, 64]},
    {"lengths": ["64"]},
]


@pytest.mark.parametrize("wrong", MALFORMED_PULLS)
def test_malformed_pulls(wrong: dict[str, Any]) -> None:
    refusal = words.request(encode({**RAW, **wrong}))
    assert isinstance(refusal, Malformed), refusal
    assert refusal.answer == b"trans_error"
    assert refusal.why


@pytest.mark.parametrize("missing", RAW)
def test_a_pull_without_one_of_its_parts(missing: str) -> None:
    refusal = words.request(encode({k: v for k, v in RAW.items() if k != missing}))
    assert isinstance(refusal, Malformed)
    assert missing in refusal.why


@pytest.mark.parametrize(
    "body",
    [
        b"query_info",
        b"query_info" + encode({}),
        b"query_info" + encode({"request_id": 5}),
        b"query_info" + encode({"request_id": ""}),
        b"query_info" + encode(["k@0_1"]),
        b"query_info" + encode({"request_id": "k" * 5000}),
        b"query_info" + encode({"request_id": "k@0_1"}) + b"\0",
        b"query_info\x81\xaarequest_id\xa1\xff",
        b"query_info" + b"\x91" * 9000,
        b"query_info" + bytes(1 << 20),
    ],
)
def test_malformed_queries(body: bytes) -> None:
    refusal = words.request(body)
    assert isinstance(refusal, Malformed)
    assert refusal.answer == b"info_not_found"


def test_any_bytes_are_a_request_or_refused() -> None:
    noise = random.Random(1)
    for nbytes in range(600):
        for begin in (b"", b"query_info"):
            assert isinstance(words.request(begin + noise.randbytes(nbytes)), KINDS)
    for good in (QUERY, PULL):
        for end in range(len(good)):
            assert isinstance(words.request(good[:end]), Malformed)
        for at in range(len(good)):
            for bit in range(8):
                damaged = bytearray(good)
                damaged[at] ^= 1 << bit
                assert isinstance(words.request(bytes(damaged)), KINDS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"trans_done",
        b"\x80",
        encode([1]),
        encode({"request_id": "k", "data_size": -1, "is_fast_path": True}),
        encode({"request_id": "k", "data_size": 1 << 63, "is_fast_path": True}),
        encode({"request_id": "k", "data_size": "1", "is_fast_path": True}),
        encode({"request_id": "k", "data_size": 1, "is_fast_path": 1}),
        bytes(1 << 20),
        b"\x91" * 9000,
    ],
)
def test_answers_that_make_no_sense(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        words.found(body)
    if body != b"trans_done":
        with pytest.raises(ProtocolError):
            words.done(body)
