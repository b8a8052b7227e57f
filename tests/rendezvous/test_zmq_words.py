"""What side channels are made of and needs no socket: words in messages, windows, addresses."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async.errors import ProtocolError, UsageError
from omni_async.rendezvous.messages import AnyMessage, Bye, Done, Offer, decode
from omni_async.rendezvous.zmq_address import HostPort, is_loopback, is_numeric, parsed
from omni_async.rendezvous.zmq_window import MESSAGES, OVERHEAD, WINDOW, Window
from omni_async.rendezvous.zmq_words import Waiting, Words, longest_message, packed, word
from tests.rendezvous.test_unix_framing import WORDS

LIMIT = 1 << 20


def unpacked(body: bytes, limit: int = LIMIT) -> list[AnyMessage]:
    words, found = Words(memoryview(body), limit), []
    while (one := words.next()) is not None:
        found.append(word(one))
    return found


def messages(waiting: Waiting) -> list[bytes]:
    bodies = []
    while waiting:
        bodies.append(bytes(waiting.first))
        waiting.sent()
    return bodies


class TestWords:
    @given(st.lists(WORDS, max_size=30))
    def test_words_come_out_as_they_went_in(self, words: list[AnyMessage]) -> None:
        waiting = Waiting(LIMIT)
        for one in words:
            waiting.add(one)
        size = waiting.nbytes
        bodies = messages(waiting)
        assert sum(map(len, bodies)) == size
        assert waiting.nbytes == 0
        assert [one for body in bodies for one in unpacked(body)] == words
        assert [decode(next_of(packed(one))) for one in words] == words

    def test_many_words_make_few_messages_none_longer_than_its_limit(self) -> None:
        waiting = Waiting(LIMIT)
        long = Bye("x" * (LIMIT - 100))
        for number in range(20_000):
            waiting.add(Done(number))
        waiting.add(long)
        waiting.add(Done(1))
        bodies = messages(waiting)
        assert len(bodies) <= 4
        assert max(map(len, bodies)) <= longest_message(LIMIT)
        assert unpacked(b"".join(bodies))[-2:] == [long, Done(1)]

    def test_a_word_too_long_leaves_no_trace(self) -> None:
        waiting = Waiting(1000)
        waiting.add(Done(1))
        for _ in range(2):
            with pytest.raises(UsageError, match="Bye has 2006 bytes, one word at most 1000"):
                waiting.add(Bye("x" * 2000))
            with pytest.raises(UsageError):
                waiting.alone(Bye("x" * 2000))
        assert unpacked(bytes(waiting.alone(Done(7)))) == [Done(7)]
        waiting.add(Done(2))
        assert unpacked(b"".join(messages(waiting))) == [Done(1), Done(2)]

    def test_memory_of_a_large_word_is_given_back(self) -> None:
        waiting = Waiting(LIMIT)
        large = waiting.alone(Offer(1, 1, [1], [], [], bytes(100_000)))
        assert len(large) > 100_000
        waiting.rest()
        assert waiting.alone(Done(1)) is not large

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"\x01", "inside the length"),
            (b"\x05\x00\x00\x00abc", "2 bytes before its word"),
            (packed(Done(1)) + b"\x00\x00\x00", "inside the length"),
            (b"\xff\xff\xff\xff", "a word of 4294967295 bytes"),
            (b"\x00\x00\x00\x00", "not a word"),
            (b"\x01\x00\x00\x00\xc1", "not a word"),
        ],
    )
    def test_nonsense(self, body: bytes, text: str) -> None:
        with pytest.raises(ProtocolError, match=text):
            unpacked(body)

    @given(st.binary(max_size=200))
    def test_any_bytes_are_words_or_a_broken_rule(self, body: bytes) -> None:
        with suppress(ProtocolError):
            unpacked(body)


def next_of(body: bytes) -> memoryview:
    one = Words(memoryview(body), LIMIT).next()
    assert one is not None
    return one


class TestWindow:
    def test_closes_when_full_and_opens_with_what_was_taken(self) -> None:
        here, there = Window(), Window()
        size = WINDOW // 100
        while here.open:
            here.say(size)
        assert here.outstanding == (100 * (size + OVERHEAD), 100)
        there.take(size)
        assert there.untold == size + OVERHEAD
        here.hear(*there.tell())
        assert there.untold == 0
        assert here.open
        assert here.outstanding == (99 * (size + OVERHEAD), 99)

    def test_closes_with_many_small_ones(self) -> None:
        here, there = Window(), Window()
        while here.open:
            here.say(1)
        assert here.outstanding.messages == MESSAGES
        count = 0
        while not there.worth_telling:
            there.take(1)
            count += 1
        assert count == MESSAGES // 8
        here.hear(*there.tell())
        assert here.open

    def test_one_message_may_go_beyond(self) -> None:
        window = Window()
        window.say(2 * WINDOW)
        assert not window.open
        window.hear(2 * WINDOW + OVERHEAD, 1)
        assert window.open
        assert window.outstanding == (0, 0)

    def test_said_twice_or_late_changes_nothing(self) -> None:
        window = Window()
        for _ in range(4):
            window.say(0)
        window.hear(3 * OVERHEAD, 3)
        window.hear(2 * OVERHEAD, 2)
        window.hear(3 * OVERHEAD, 3)
        assert window.outstanding == (OVERHEAD, 1)

    @pytest.mark.parametrize("told", [(OVERHEAD + 1, 1), (OVERHEAD, 2)])
    def test_taken_more_than_was_said(self, told: tuple[int, int]) -> None:
        window = Window()
        window.say(0)
        with pytest.raises(ProtocolError, match="it was sent 1, 64"):
            window.hear(*told)


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "host", "back"),
        [
            ("tcp://10.0.0.1:50051", "10.0.0.1", None),
            ("tcp://node-1.example:1", "node-1.example", None),
            ("tcp://[::1]:65535", "::1", None),
            ("tcp://::1:50051", "::1", "tcp://[::1]:50051"),
            ("tcp://[fe80::1%lo]:50051", "fe80::1%lo", None),
        ],
    )
    def test_read_and_written(self, text: str, host: str, back: str | None) -> None:
        where = parsed(text)
        assert where.host == host
        assert str(where) == (back or text)
        assert parsed(str(where)) == where

    @pytest.mark.parametrize(
        "text",
        [
            "10.0.0.1:50051",
            "unix:@x",
            "tcp://10.0.0.1",
            "tcp://10.0.0.1:0",
            "tcp://10.0.0.1:65536",
            "tcp://10.0.0.1:-5",
            "tcp://10.0.0.1:٣",
            "tcp://10.0.0.1:1:5",
            "tcp://0.0.0.0:5",
            "tcp://[::]:5",
            "tcp://auto:5",
            "tcp://*:5",
            "tcp://:5",
            "tcp://a b:5",
            "tcp://a/b:5",
            "",
        ],
    )
    def test_what_leads_nowhere_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="no address of a sender"):
            parsed(text)

    def test_kinds(self) -> None:
        assert is_numeric("fe80::1%lo")
        assert not is_numeric("localhost")
        assert is_loopback("127.0.1.1")
        assert is_loopback("::1")
        assert is_loopback("::ffff:127.0.0.1")
        assert not is_loopback("localhost")
        assert not is_loopback("10.0.0.1")
        assert str(HostPort("::1", 5)) == "tcp://[::1]:5"
