"""The parser: any split of the bytes gives the same words; nonsense ends in ProtocolError."""

from __future__ import annotations

import contextlib
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async.errors import ProtocolError
from omni_async.rendezvous.framing import MAX_FDS, FrameReader, close_fds, duplicates, fds_of
from omni_async.rendezvous.messages import (
    AnyMessage,
    Bye,
    Cancel,
    Credit,
    Done,
    Fail,
    FailCode,
    Offer,
    Ping,
    PlaceWord,
    Pull,
    Regions,
    RegionWord,
    Release,
    Want,
    encode,
)
from tests.descriptors import open_descriptors
from tests.rendezvous.lines import hello, regions, want

_ints = st.integers(-(2**63), 2**64 - 1)
_places = st.lists(st.builds(PlaceWord, _ints, _ints, _ints, _ints), max_size=3)
_region = st.builds(RegionWord, _ints, _ints, _ints, st.binary(max_size=40), st.just(False))
WORDS: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(Regions, st.lists(_region, max_size=3), st.lists(_ints, max_size=3)),
    st.builds(Want, _ints, st.text(), st.text(), st.text(), st.booleans()),
    st.builds(
        Offer,
        _ints,
        _ints,
        st.lists(_ints, max_size=4),
        _places,
        st.lists(_ints, max_size=2),
        st.none() | st.binary(max_size=200_000),
    ),
    st.builds(Pull, _ints, _places),
    st.builds(Done, _ints),
    st.builds(Fail, _ints, st.sampled_from(FailCode), st.text()),
    st.builds(Cancel, _ints),
    st.builds(Release, _ints, st.booleans()),
    st.builds(Credit, _ints, _ints),
    st.builds(Ping),
    st.builds(Bye, st.text(), st.lists(_ints, max_size=3)),
)


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def feed(reader: FrameReader, data: bytes, fds: tuple[int, ...] = ()) -> list[AnyMessage]:
    """As a socket would: as much as there is space for, descriptors with the first byte."""
    words = []
    while data:
        space = reader.space()
        part = data[: len(space)]
        space[: len(part)] = part
        reader.took(len(part), fds)
        fds, data = (), data[len(part) :]
        while (word := reader.next()) is not None:
            words.append(word)
        reader.settle()
    return words


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, max_size=12), st.data())
def test_any_split_gives_the_same_words(words: list[AnyMessage], data: st.DataObject) -> None:
    stream = b"".join(frame(encode(word)) for word in words)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    reader = FrameReader()
    got = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += feed(reader, stream[start:stop])
    assert got == words
    assert reader.partial == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), st.data())
def test_mutated_bytes_give_words_or_one_protocol_error(
    words: list[AnyMessage], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(frame(encode(word)) for word in words))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    reader = FrameReader(limit=1 << 20)
    with contextlib.suppress(ProtocolError):
        feed(reader, bytes(stream))
    assert reader.partial <= len(stream)
    reader.close()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_foreign_bytes_give_words_or_one_protocol_error(body: bytes) -> None:
    reader = FrameReader()
    with contextlib.suppress(ProtocolError):
        feed(reader, frame(body))
    reader.close()


@given(WORDS, st.data())
@settings(max_examples=60, deadline=None)
def test_truncated_word_waits(word: AnyMessage, data: st.DataObject) -> None:
    stream = frame(encode(word))
    reader = FrameReader()
    stop = data.draw(st.integers(1, len(stream) - 1))
    assert feed(reader, stream[:stop]) == []
    assert reader.partial == stop
    assert feed(reader, stream[stop:]) == [word]


def test_what_a_word_keeps_is_copied() -> None:
    reader = FrameReader()
    (offer,) = feed(reader, frame(encode(Offer(1, 3, [3], [], [], b"abc"))))
    feed(reader, frame(encode(Offer(2, 3, [3], [], [], b"xyz"))))
    assert isinstance(offer, Offer)
    assert offer.inline == b"abc"


@pytest.mark.parametrize("whole", [False, True])
def test_oversize_is_refused_without_the_memory_it_claims(whole: bool) -> None:
    reader = FrameReader(limit=100)
    body = encode(Offer(1, 3, [3], [], [], bytes(200)))
    with pytest.raises(ProtocolError, match=r"a word of \d+ bytes .* limit is 100"):
        feed(reader, frame(body) if whole else struct.pack("<I", 1 << 31))
    assert len(reader.space()) < 1 << 20


def test_nested_arrays_without_end() -> None:
    with pytest.raises(ProtocolError, match="not a word"):
        feed(FrameReader(), frame(b"\x92\x0b" + b"\x91" * 100_000))


def test_large_buffer_is_given_back_when_it_rests() -> None:
    reader = FrameReader()
    big = Offer(1, 3, [3], [], [], bytes(1 << 20))
    assert feed(reader, frame(encode(big))) == [big]
    reader.rest()
    assert len(reader.space()) > 1 << 20
    reader.rest()
    assert len(reader.space()) == 256 << 10
    assert feed(reader, frame(encode(big))) == [big]


def test_partial_word_moves_to_the_front() -> None:
    reader = FrameReader()
    words: list[AnyMessage] = [Offer(n, 3, [3], [], [], bytes(30_000)) for n in range(36)]
    stream = b"".join(frame(encode(word)) for word in words)
    got = []
    for start in range(0, len(stream), 1000):
        got += feed(reader, stream[start : start + 1000])
    assert got == words


def pipes(count: int) -> tuple[list[int], list[int]]:
    reads, writes = [], []
    for _ in range(count):
        r, w = os.pipe()
        reads.append(r)
        writes.append(w)
    return reads, writes


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_descriptors_go_to_the_words_that_name_them() -> None:
    reads, writes = pipes(3)
    reader = FrameReader()
    space = reader.space()
    data = frame(encode(want(1))) + frame(encode(regions(1))) + frame(encode(regions(2)))
    space[: len(data)] = data
    reader.took(len(data), reads)
    assert reader.next() == want(1)
    assert reader.fds == []
    assert reader.next() == regions(1)
    assert reader.fds == reads[:1]
    assert reader.next() == regions(2)
    assert reader.fds == reads[1:]
    reader.settle()
    assert reader.stray == 0
    close_fds(reads + writes)


def test_descriptors_of_a_partial_word_are_kept_for_it() -> None:
    reads, writes = pipes(1)
    reader = FrameReader()
    data = frame(encode(regions(1)))
    assert feed(reader, data[:5], (reads[0],)) == []
    assert feed(reader, data[5:]) == [regions(1)]
    assert reader.fds == reads
    close_fds(reads + writes)


def test_stray_descriptors_are_closed_and_counted() -> None:
    reads, writes = pipes(2)
    reader = FrameReader()
    assert feed(reader, frame(encode(want(1))), tuple(reads)) == [want(1)]
    assert reader.stray == 2
    assert not any(map(is_open, reads))
    close_fds(writes)


def test_missing_descriptor() -> None:
    with pytest.raises(ProtocolError, match="2 descriptors belong to a Regions word, 0 came"):
        feed(FrameReader(), frame(encode(regions(2))))


def test_more_descriptors_than_words_can_name() -> None:
    source, writes = pipes(1)
    reader = FrameReader()
    fds = [os.dup(source[0]) for _ in range(MAX_FDS + 1)]
    with pytest.raises(ProtocolError, match="without a word"):
        reader.took(1, fds)
    reader.close()
    assert not any(map(is_open, fds))
    close_fds(source + writes)


def test_fds_of_counts_only_regions_that_have_one() -> None:
    word = Regions([RegionWord(1, 0, 1, b"", True), RegionWord(2, 0, 1, b"", False)])
    assert fds_of(word) == 1
    assert fds_of(hello("sender", "n")) == 0


def test_duplicates_are_all_or_none() -> None:
    reads, writes = pipes(1)
    before = len(open_descriptors())
    with pytest.raises(OSError, match="Bad file descriptor"):
        duplicates([reads[0], 10**6])
    assert len(open_descriptors()) == before
    close_fds(reads + writes)
