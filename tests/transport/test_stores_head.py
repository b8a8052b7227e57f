"""The head of an object: what was sealed comes back, and nothing else is believed."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async.errors import DecodeError, ProtocolError
from omni_async.model import packed
from omni_async.transport.stored.head import (
    LONGEST,
    MAGIC,
    TAIL,
    VERSION,
    Head,
    Replaced,
    seal,
    tail,
    unseal,
)

TEXT = "req-1@0_1"
SIZES = st.lists(st.integers(0, 300), max_size=5)
HEAD = Head(TEXT, 130, [30, 100], fast=True, expires=2e9, number=0x123456789ABCDEF0)


def whole(head: Head) -> bytearray:
    return bytearray(seal(head) + bytes(packed(head.sizes)[1]) + tail(head))


def read(data: bytes | bytearray, text: str = TEXT) -> tuple[Head, list[int]]:
    return unseal(memoryview(data), text)


@given(
    SIZES,
    st.text(max_size=200),
    st.integers(0, 1 << 60),
    st.booleans(),
    st.integers(1, 1000),
    st.floats(0, 1e11),
)
def test_what_was_sealed_comes_back(
    sizes: list[int], text: str, nbytes: int, fast: bool, consumers: int, expires: float
) -> None:
    head = Head(text, nbytes, sizes, fast, consumers, expires)
    data = whole(head)
    found, offsets = read(data, text)
    assert found == head
    assert len(offsets) == len(sizes)
    assert all(offset % 64 == 0 for offset in offsets)
    assert len(seal(head)) % 64 == 0
    if sizes:
        assert offsets[0] == len(seal(head))
        assert offsets[-1] + sizes[-1] <= len(data) - TAIL


def test_every_byte_that_is_changed_is_noticed_or_harmless() -> None:
    """One typed error, or a head whose frames lie within the object."""
    sound = whole(HEAD)
    end = len(seal(HEAD))
    noticed = 0
    for place in range(end):
        for value in range(256):
            data = bytearray(sound)
            data[place] = value
            try:
                head, offsets = read(data)
            except Replaced:
                noticed += 1
                continue
            except (DecodeError, ProtocolError) as error:
                assert repr(TEXT) in str(error)  # noqa: PT017 - some bytes are harmless
                noticed += 1
                continue
            assert head.text == TEXT
            assert all(size >= 0 for size in head.sizes)
            spans = zip(offsets, head.sizes, strict=True)
            assert all(end <= at and at + size <= len(data) for at, size in spans)
            assert head.consumers >= 1
    assert noticed > 10 * 256


def test_every_length_it_is_cut_to_is_noticed() -> None:
    sound = whole(HEAD)
    for length in range(len(sound)):
        with pytest.raises(DecodeError, match="req-1@0_1"):
            read(sound[:length])
    with pytest.raises(DecodeError):
        read(sound + bytes(64))


@given(st.binary(max_size=300))
def test_random_bytes_are_no_object(data: bytes) -> None:
    with pytest.raises((DecodeError, ProtocolError)):
        read(data)


@settings(max_examples=300)
@given(st.binary(max_size=120), st.integers(0, 200))
def test_random_heads_behind_a_good_beginning(body: bytes, claimed: int) -> None:
    data = struct.pack("<3sBI", MAGIC, VERSION, claimed) + body + bytes(64)
    with pytest.raises((DecodeError, ProtocolError)):
        read(data)


@pytest.mark.parametrize(
    "body",
    [
        [TEXT, 1, [-64]],
        [TEXT, 1, [], False, 0],
        [TEXT, 1, [], False, -1],
        [TEXT, 1, [1 << 63]],
        [TEXT, 1, [1 << 40]],
        [TEXT, 1, [], False, 1, 0.0, "more"],
        [TEXT, 1],
        {"text": TEXT},
        [TEXT, 1, [1.5]],
        None,
    ],
    ids=repr,
)
def test_heads_that_make_no_sense(body: object) -> None:
    raw = msgspec.msgpack.encode(body)
    data = struct.pack("<3sBI", MAGIC, VERSION, len(raw)) + raw
    with pytest.raises(DecodeError):
        read(data.ljust(128, b"\0"))


def test_a_length_beyond_everything_costs_nothing() -> None:
    for claimed in (LONGEST + 1, (1 << 32) - 1):
        with pytest.raises(DecodeError, match="no whole head"):
            read(struct.pack("<3sBI", MAGIC, VERSION, claimed) + bytes(LONGEST + 64))


def test_a_head_that_is_no_time_is_refused() -> None:
    for expires in (float("nan"), float("-inf"), -1.0):
        with pytest.raises(DecodeError):
            read(whole(Head(TEXT, 1, [1], expires=expires)))


def test_another_version_and_another_name_are_told() -> None:
    data = whole(HEAD)
    data[3] = VERSION + 1
    with pytest.raises(ProtocolError, match="version 2, not 1"):
        read(data)
    with pytest.raises(ProtocolError, match="was put as 'req-1@0_1'"):
        read(whole(HEAD), "req-2@0_1")


def test_an_object_of_others_is_told_with_the_remedy() -> None:
    with pytest.raises(DecodeError, match="peer: vllm-omni"):
        read(b"\x82\xa1a\x01".ljust(64, b"\0"))


def test_the_end_of_another_object_is_noticed() -> None:
    other = whole(msgspec.structs.replace(HEAD, number=HEAD.number + 1))
    sound = whole(HEAD)
    for at in range(len(seal(HEAD)), len(sound) - TAIL + 1):
        with pytest.raises(Replaced):
            read(sound[:at] + other[at:])
        with pytest.raises(Replaced):
            read(other[:at] + sound[at:])
