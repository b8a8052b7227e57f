"""Notices on notify ports, and the answer of a handshake: bytes as others have them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async.errors import ProtocolError, UsageError
from omni_async.kv.control import (
    AgentMetadata,
    Notice,
    OwnMetadata,
    Registered,
    Released,
    RemoteBlocks,
    WriteDone,
    WriteFailed,
    packed,
    parse_notice,
)
from omni_async.kv.control.metadata import packed_answer, parse_answer
from omni_async.kv.control.notices import packed_as_text

BLOCKS = bytes.fromhex(
    "85a67265715f6964a172ab7472616e736665725f6964a474782d31b1626c6f636b5f6e6f746966795f6c697374930304cd"
    "01f4ab6465636f64655f72616e6b00a474797065ad72656d6f74655f626c6f636b73"
)
DONE = bytes.fromhex("82a474797065aa77726974655f646f6e65ab7472616e736665725f6964a474782d31")
RELEASE = bytes.fromhex("82a474797065a772656c65617365ab7472616e736665725f6964a474782d31")
RELEASE_8 = b"\x83" + RELEASE[1:] + bytes.fromhex("b0636f6e73756d65725f74705f73697a6508")
BEAT = bytes.fromhex(
    "86a474797065a150ac687474705f61646472657373af3132372e302e302e313a3230303035ab7a6d715f61646472657373"
    "d929686f73743a3132372e302e302e312c68616e647368616b653a363330312c6e6f746966793a36313035a764705f7369"
    "7a6501a774705f73697a6504ad7472616e736665725f6d6f6465a55752495445"
)


@pytest.mark.parametrize(
    ("notice", "body", "side"),
    [
        (RemoteBlocks("r", "tx-1", (3, 4, 500)), BLOCKS, "prefill"),
        (WriteDone("tx-1"), DONE, "decode"),
        (Released("tx-1"), RELEASE, "prefill"),
        (Released("tx-1", 8), RELEASE_8, "prefill"),
    ],
)
def test_the_bytes_of_each(notice: Notice, body: bytes, side: Any) -> None:
    assert packed(notice) == body
    assert parse_notice(body, side) == notice
    assert parse_notice(memoryview(body), side) == notice


IDS = st.text(min_size=1, max_size=60)
SIZES = st.integers(1, 1 << 20)
TO_PREFILL = st.one_of(
    st.builds(
        RemoteBlocks,
        st.text(),
        IDS,
        st.lists(st.integers(0, 1 << 31), min_size=1).map(tuple),
        st.integers(0, 999),
    ),
    st.builds(Released, IDS, st.none() | SIZES),
)
TO_DECODE = st.one_of(st.builds(WriteDone, IDS), st.builds(WriteFailed, IDS))


@given(TO_PREFILL, TO_DECODE)
def test_notices_come_back(one: Notice, other: Notice) -> None:
    assert parse_notice(packed(one), "prefill") == one
    assert parse_notice(packed(other), "decode") == other
    with pytest.raises(ProtocolError, match="a decode instance cannot be told"):
        parse_notice(packed(one), "decode")
    with pytest.raises(ProtocolError, match="a prefill instance cannot be told"):
        parse_notice(packed(other), "prefill")


def test_the_older_forms() -> None:
    assert packed_as_text(WriteDone("tx-1")) == b"tx-1"
    assert parse_notice(b"tx-1", "decode") == WriteDone("tx-1")
    assert parse_notice(b"tx-1", "prefill") == Released("tx-1")
    assert parse_notice("ߐ".encode(), "decode") == WriteDone("ߐ")  # begins as a map would
    untyped = {"req_id": "r", "transfer_id": "tx", "block_notify_list": [[1, 2]]}
    assert parse_notice(msgspec.msgpack.encode(untyped), "prefill") == RemoteBlocks(
        "r", "tx", (1, 2)
    )
    more = {"type": "release", "transfer_id": "tx", "later": [1, {"a": None}]}
    assert parse_notice(msgspec.msgpack.encode(more), "prefill") == Released("tx")


def test_what_would_end_a_listener_is_not_made() -> None:
    for notice in (
        RemoteBlocks("r", "tx", ()),
        WriteDone(""),
        Released("tx", 0),
    ):
        with pytest.raises(UsageError):
            packed(notice)


@pytest.mark.parametrize(
    "told",
    [
        {"type": "hello", "transfer_id": "tx"},
        {"type": "release"},
        {"type": "release", "transfer_id": ""},
        {"type": "release", "transfer_id": 5},
        {"type": "release", "transfer_id": "tx", "consumer_tp_size": 0},
        {"type": "release", "transfer_id": "tx", "consumer_tp_size": "8"},
        {"type": "remote_blocks", "transfer_id": "tx"},
        {"type": "remote_blocks", "transfer_id": "tx", "block_notify_list": []},
        {"type": "remote_blocks", "transfer_id": "tx", "block_notify_list": [[]]},
        {"type": "remote_blocks", "transfer_id": "tx", "block_notify_list": [-1]},
        {"type": "remote_blocks", "transfer_id": "tx", "block_notify_list": [[1], [2]]},
        {
            "type": "remote_blocks",
            "transfer_id": "tx",
            "block_notify_list": [1],
            "decode_rank": None,
        },
        {},
        {"transfer_id": "tx"},
    ],
)
def test_notices_that_are_none(told: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        parse_notice(msgspec.msgpack.encode(told), "prefill")


@given(st.binary() | st.recursive(st.binary(), lambda x: st.lists(x)).map(msgspec.msgpack.encode))
def test_any_bytes_are_a_notice_or_refused(body: bytes) -> None:
    for side in ("prefill", "decode"):
        with contextlib.suppress(ProtocolError):
            parse_notice(body, side)


# -- registrations -----------------------------------------------------------------------------------


def test_the_bytes_of_a_beat() -> None:
    record = Registered(
        type="P",
        http_address="127.0.0.1:20005",
        zmq_address="host:127.0.0.1,handshake:6301,notify:6105",
        dp_size=1,
        tp_size=4,
        transfer_mode="WRITE",
    )
    assert record.packed() == BEAT
    assert Registered.parse(BEAT) == record
    for body in (b"", b"{}", BEAT[:-1], BEAT + b"x", b"\x80"):
        with pytest.raises(ProtocolError, match="register no instance"):
            Registered.parse(body)


# -- handshakes --------------------------------------------------------------------------------------


def test_what_all_know_and_what_only_we_know() -> None:
    own = OwnMetadata(layout={"layers": 2}, tp_size=2, endpoint=("n", "0", 1, 0))
    metadata = AgentMetadata(
        engine_id="10.0.0.1:6301",
        agent_metadata=b"\x01",
        kv_caches_base_addr=[1 << 47],
        num_blocks=1024,
        block_len=4096,
        attn_backend_name="TORCH",
        omni_async=own,
    )
    bodies = packed_answer(metadata, {"layers.0": [b"a"], "layers.1": [b"b"]})
    assert parse_answer(bodies, "them") == (metadata, {"layers.0": [b"a"], "layers.1": [b"b"]})
    assert list(msgspec.msgpack.decode(bodies[0])) == [
        "engine_id",
        "agent_metadata",
        "kv_caches_base_addr",
        "num_blocks",
        "block_len",
        "attn_backend_name",
        "omni_async",
    ]
    theirs = msgspec.msgpack.encode({"engine_id": "e", "agent_metadata": b"x", "num_blocks": 1})
    found, _ = parse_answer((theirs, b"\x80"), "them")
    assert found == AgentMetadata(engine_id="e", agent_metadata=b"x", num_blocks=1)


@pytest.mark.parametrize(
    "bodies", [(b"", b"\x80"), (b"\x80", b"\x80"), (b"\x81\xa9engine_id\xa1e", b"")]
)
def test_answers_that_are_none(bodies: tuple[bytes, bytes]) -> None:
    with pytest.raises(ProtocolError, match="them answers the handshake with something else"):
        parse_answer(bodies, "them")


def test_another_version_is_refused_by_both_numbers() -> None:
    bodies = packed_answer(AgentMetadata(engine_id="e", omni_async=OwnMetadata(version=7)), {})
    with pytest.raises(
        ProtocolError, match="them speaks version 7 of the handshake, this side version 1"
    ):
        parse_answer(bodies, "them")
