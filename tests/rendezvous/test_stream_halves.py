"""The two halves of streams, word by word.

In: words. Out: words, and what writers and readers are told.
Never: a network; the world of `tests/kit/test_stream_world.py` has one.
"""

from __future__ import annotations

from typing import Any

import pytest

from omni_async.model import TransferKey
from omni_async.rendezvous import seen as seen_module
from omni_async.rendezvous import stream_writers
from omni_async.rendezvous.messages import (
    Cancel,
    Chunk,
    Credit,
    End,
    Fail,
    FailCode,
    Message,
    Open,
    Release,
    Segment,
)
from omni_async.rendezvous.outlet import Broken, Outlet
from omni_async.rendezvous.seen import LIMIT, Seen
from omni_async.rendezvous.stream_readers import EARLY, Gap, Readers
from omni_async.rendezvous.stream_writers import Writers

KEY = TransferKey("0", "1", "k")


class Sent:
    """A writers' half and what it says."""

    def __init__(self) -> None:
        self.words: list[tuple[int, Message]] = []
        self.half = Writers(lambda ref, word: self.words.append((ref[0], word)))

    def begin(self, window: int = 4, key: TransferKey = KEY) -> Outlet:
        outlet = self.half.open(key, window)
        assert outlet is not None
        return outlet

    def chunks(self, outlet: Outlet, count: int) -> None:
        for _ in range(count):
            assert outlet.room
            self.half.chunk(outlet, [1], b"x")

    def said(self) -> list[str]:
        words, self.words = self.words, []
        return [type(word).__name__ for _, word in words]


class Heard:
    """A readers' half and what it says."""

    def __init__(self) -> None:
        self.words: list[tuple[Message, bool]] = []
        self.ops = iter(range(1, 1000))
        self.half = Readers(
            lambda word, urgent: self.words.append((word, urgent)), lambda: next(self.ops)
        )
        self.half.connected()

    def said(self) -> list[Message]:
        words, self.words = self.words, []
        return [word for word, _ in words]


def ask(op: int, credit: int = 4, key: TransferKey = KEY) -> Open:
    return Open(op, *key, credit)


# --- writers --------------------------------------------------------------------------------------


def test_credit_is_kept_when_a_reader_comes_while_a_chunk_is_being_put() -> None:
    sent = Sent()
    outlet = sent.begin(window=4)
    sent.chunks(outlet, 2)
    assert outlet.room == 2  # and now a larger one begins to be put
    sent.half.receive(1, ask(1, credit=2))
    assert sent.said() == ["Chunk", "Chunk"]
    sent.half.filed_chunk(outlet, 10, TransferKey("", "1", "x"))
    assert sent.said() == []
    assert (outlet.queued, outlet.in_flight, outlet.room) == (1, 2, 0)
    sent.half.credit((1, 1), Credit(1, 3, 1))
    assert sent.said() == ["Chunk"]
    assert (outlet.queued, outlet.in_flight) == (0, 2)


def test_credit_that_is_old_or_of_nobody_changes_nothing() -> None:
    sent = Sent()
    outlet = sent.begin()
    sent.half.receive(1, ask(1, credit=4))
    for credit, ref in ((4, (1, 1)), (3, (1, 1)), (9, (1, 2)), (9, (2, 1))):
        sent.half.credit(ref, Credit(ref[1], credit))
    assert (outlet.granted, sent.half.ignored) == (4, 4)


def test_an_open_without_credit_or_heard_before_is_ignored() -> None:
    sent = Sent()
    sent.half.receive(1, ask(1, credit=0))
    sent.half.receive(1, ask(2))
    sent.half.receive(1, ask(2))
    assert (sent.half.ignored, sent.half.waiting) == (2, 1)
    sent.half.receive(2, ask(2))  # another peer's number is another one
    assert sent.half.waiting == 2


def test_a_cancel_that_overtakes_its_open() -> None:
    sent = Sent()
    assert not sent.half.left((1, 1), done=False)
    sent.half.receive(1, ask(1))
    assert sent.half.waiting == 0
    assert not sent.half.left((1, 9), done=True)
    sent.half.receive(1, ask(9))
    assert sent.half.waiting == 1


def test_only_one_writer_has_a_key_until_it_has_ended() -> None:
    sent = Sent()
    first = sent.begin()
    assert sent.half.open(KEY, 4) is None
    sent.half.receive(1, ask(1, credit=1))
    sent.chunks(first, 1)
    sent.half.segment(first)
    sent.half.end(first, None, 0.0)
    sent.half.end(first, "twice", 0.0)
    second = sent.begin()
    assert first.over
    assert (len(sent.half), sent.half.unread) == (2, 1)
    assert sent.half.left((1, 1), done=True)
    assert (len(sent.half), sent.half.unread) == (1, 0)
    assert first.broken is second.broken is None
    assert sent.said() == ["Chunk", "Segment", "End"]


def test_what_nobody_has_begun_to_read_is_replaced() -> None:
    sent = Sent()
    first = sent.begin()
    sent.half.filed_chunk(first, 10, TransferKey("", "1", "x"))
    sent.half.end(first, None, 0.0)
    sent.half.end(sent.begin(), "why", 0.0)
    assert first.broken is Broken.REPLACED
    assert sent.half.obsolete == [TransferKey("", "1", "x")]
    sent.half.receive(1, ask(1))
    assert sent.said() == ["End"]
    sent.half.end(first, None, 0.0)  # without effect on one that is broken
    assert sent.half.unread == 1


def test_a_reader_that_calls_a_stream_over_before_it_is() -> None:
    sent = Sent()
    outlet = sent.begin()
    sent.half.receive(1, ask(1, credit=1))
    sent.chunks(outlet, 1)
    assert sent.half.left((1, 1), done=True)
    assert outlet.broken is Broken.LEFT
    assert len(sent.half) == 0


def test_only_one_reader_has_a_stream() -> None:
    sent = Sent()
    for op in (1, 2):
        sent.half.receive(op, ask(op))
    outlet = sent.begin()
    sent.half.receive(3, ask(3))
    refused = [(peer, word) for peer, word in sent.words if isinstance(word, Fail)]
    assert [(peer, word.code) for peer, word in refused] == [
        (2, FailCode.CLOSED),
        (3, FailCode.CLOSED),
    ]
    assert outlet.ref == (1, 1)
    assert sent.half.waiting == 0


def test_what_is_filed_goes_when_it_was_taken() -> None:
    sent = Sent()
    outlet = sent.begin(window=2)
    keys = [TransferKey("", "1", f"x{n}") for n in range(3)]
    sent.half.receive(1, ask(1, credit=8))
    sent.half.filed_chunk(outlet, 1, keys[0])
    sent.chunks(outlet, 1)
    sent.half.filed_chunk(outlet, 1, keys[1])
    sent.half.filed_chunk(outlet, 1, keys[2])
    sent.half.credit((1, 1), Credit(1, 10, 2))
    assert sent.half.obsolete == keys[:1]
    sent.half.peer_ended(1)
    assert sent.half.obsolete == keys
    assert outlet.broken is Broken.LOST


def test_clean_up_tells_every_reader() -> None:
    sent = Sent()
    being_read, ended, unread = (
        sent.begin(key=TransferKey("0", stage, "k")) for stage in ("1", "2", "3")
    )
    for op, stage in ((1, "1"), (2, "2"), (4, "4")):
        sent.half.receive(op, ask(op, key=TransferKey("0", stage, "k")))
    sent.half.end(ended, None, 0.0)
    sent.said()
    assert sent.half.cleanup("other") == 0
    assert sent.half.cleanup("k") == 4
    assert sorted(peer for peer, _ in sent.words) == [1, 2, 4]
    assert all(isinstance(word, Fail) for _, word in sent.words)
    assert {o.broken for o in (being_read, ended, unread)} == {Broken.CLEANED}
    assert (len(sent.half), sent.half.waiting, sent.half.unread) == (0, 0, 0)


def test_what_expires_is_told_to_the_next_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_writers, "TOMBSTONES", 1)
    sent = Sent()
    keys = [TransferKey("0", "1", f"k{n}") for n in range(3)]
    outlets = [sent.begin(key=key) for key in keys]
    assert sent.half.oldest() is None
    for number, outlet in enumerate(outlets[:2]):
        sent.half.end(outlet, None, float(number))
    assert sent.half.oldest() == 0.0
    assert sent.half.expire(0.5) == 1
    assert sent.half.expire(5.0) == 1
    assert [o.broken for o in outlets] == [Broken.EXPIRED, Broken.EXPIRED, None]
    for op, key in enumerate(keys, 1):  # the first is too long ago to be remembered
        sent.half.receive(1, ask(op, key=key))
    sent.half.receive(1, ask(9, key=keys[1]))
    (fail,) = (word for _, word in sent.words)
    assert isinstance(fail, Fail)
    assert (fail.op, fail.code) == (2, FailCode.EXPIRED)
    assert sent.half.waiting == 2


def test_closing_tells_readers_behind_what_they_have() -> None:
    sent = Sent()
    behind = sent.begin()
    sent.chunks(behind, 3)
    sent.half.receive(1, ask(1, credit=1))
    over = sent.begin(key=TransferKey("0", "2", "k"))
    sent.half.receive(2, ask(2, key=over.key))
    sent.half.end(over, None, 0.0)
    unread = sent.begin(key=TransferKey("0", "3", "k"))
    sent.half.end(unread, None, 0.0)
    sent.words.clear()
    assert sent.half.close("closing") == 2
    assert [(peer, word) for peer, word in sent.words] == [(1, End(1, 1, "closing"))]
    assert behind.broken is Broken.CLOSED
    assert list(sent.half.every()) == []


def test_ids_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIMIT > 100
    monkeypatch.setattr(seen_module, "LIMIT", 4)
    seen = Seen()
    assert [seen.add(op) for op in (1, 3, 2, 3, 5, 6)] == [True, True, True, False, True, True]
    assert [seen.add(op) for op in (1, 2, 4, 6)] == [False, False, True, False]


# --- readers --------------------------------------------------------------------------------------


def chunk(op: int, seq: int, *, filed: bool = False) -> Chunk:
    return Chunk(op, seq, [1], None if filed else b"x", "filed" if filed else "")


def test_items_come_in_order_and_once() -> None:
    heard = Heard()
    inlet = heard.half.open(KEY, 8)
    for seq in (1, 1, 3):
        heard.half.receive(chunk(inlet.op, seq))
    assert not inlet.arrived
    assert heard.half.ignored == 1
    heard.half.receive(chunk(inlet.op, 0))
    assert [item.seq for item in _items(inlet.arrived)] == [0, 1]
    heard.half.receive(chunk(inlet.op, 0))
    heard.half.receive(Segment(inlet.op, 2))
    heard.half.receive(End(inlet.op, 4))
    heard.half.receive(End(inlet.op, 4))
    assert [item.seq for item in _items(inlet.arrived)] == [0, 1, 2, 3, 4]
    assert heard.half.ignored == 3
    assert heard.said() == [ask(1, 8), Release(1, True)]
    assert (len(heard.half), heard.half.stirred[-1]) == (0, inlet)


def test_an_end_is_confirmed_when_larger_chunks_are_here() -> None:
    heard = Heard()
    inlet = heard.half.open(KEY, 8)
    for seq in range(2):
        heard.half.receive(chunk(1, seq, filed=True))
    heard.half.receive(End(1, 2))
    heard.half.fetched(inlet)
    assert heard.said() == [ask(1, 8)]
    heard.half.receive(chunk(1, 3))  # behind the end
    assert heard.half.ignored == 1
    heard.half.fetched(inlet)
    assert heard.said() == [Release(1, True)]
    heard.half.leave(inlet)
    assert heard.said() == []


@pytest.mark.parametrize("last", [None, Fail(1, FailCode.CANCELLED)])
def test_an_end_before_larger_chunks_are_here(last: Fail | None) -> None:
    heard = Heard()
    inlet = heard.half.open(KEY, 8)
    heard.half.receive(chunk(1, 0, filed=True))
    heard.half.receive(End(1, 1))
    if last is None:
        heard.half.lost()
    else:
        assert heard.half.receive(last)
    assert inlet.arrived[-1] is last
    heard.said()
    heard.half.fetched(inlet)
    heard.half.leave(inlet)
    assert heard.said() == []


def test_leaving_says_what_is_due() -> None:
    heard = Heard()
    begun, over = heard.half.open(KEY, 8), heard.half.open(KEY, 8)
    heard.half.receive(chunk(over.op, 0, filed=True))
    heard.half.receive(End(over.op, 1))
    heard.said()
    for inlet in (begun, over, begun, over):
        heard.half.leave(inlet)
    assert heard.words == [(Cancel(begun.op), True), (Release(over.op, True), True)]
    heard.words.clear()
    heard.half.lost()
    inlet = heard.half.open(KEY, 8)
    heard.half.leave(inlet)
    heard.half.connected()
    assert heard.said() == []


def test_credit_is_given_in_batches() -> None:
    heard = Heard()
    inlet = heard.half.open(KEY, 4)
    for seq in range(4):
        heard.half.receive(chunk(1, seq))
    heard.said()
    heard.half.took(inlet)
    assert heard.said() == []
    heard.half.took(inlet)
    assert heard.said() == [Credit(1, 6, 2)]
    heard.half.receive(End(1, 4))
    heard.half.took(inlet, 2)
    assert heard.said() == [Release(1, True)]


def test_a_window_that_grows() -> None:
    heard = Heard()
    heard.half.lost()
    inlet = heard.half.open(KEY, 1)
    inlet.window = 2
    heard.half.took(inlet, 0)
    heard.half.connected()
    assert heard.said() == [ask(1, 2)]
    inlet.window = 8
    heard.half.took(inlet, 0)
    assert heard.said() == []  # the writer may not know of it yet
    heard.half.receive(chunk(1, 0))
    assert heard.said() == [Credit(1, 8, 0)]


def test_what_has_not_begun_asks_the_next_sender() -> None:
    heard = Heard()
    begun, waiting = heard.half.open(KEY, 2), heard.half.open(KEY, 2)
    heard.half.receive(chunk(begun.op, 0))
    assert heard.half.parked == 1
    heard.said()
    heard.half.lost()
    heard.half.connected()
    assert heard.said() == [ask(waiting.op, 2)]
    assert begun.arrived[-1] is None
    heard.half.receive(chunk(begun.op, 1))
    assert heard.half.ignored == 1
    assert not heard.half.receive(Fail(begun.op, FailCode.CLOSED))


def test_a_sender_that_will_never_answer() -> None:
    heard = Heard()
    begun, waiting = heard.half.open(KEY, 2), heard.half.open(KEY, 2)
    heard.half.receive(chunk(begun.op, 0))
    heard.half.refused("another wire")
    (fail,) = waiting.arrived
    assert isinstance(fail, Fail)
    assert (fail.code, fail.text) == (FailCode.REFUSED, "another wire")
    assert len(heard.half) == 1


def test_an_item_that_never_comes_is_told_of_in_the_end() -> None:
    heard = Heard()
    inlet = heard.half.open(KEY, 2)
    for seq in range(1, EARLY + 4):
        heard.half.receive(Segment(1, seq))
    (gap,) = inlet.arrived
    assert isinstance(gap, Gap)
    assert (gap.expected, gap.received) == (0, EARLY + 3)
    assert heard.said()[-1] == Cancel(1)
    assert (len(heard.half), len(inlet.early)) == (0, 0)


def _items(arrived: Any) -> list[Any]:
    return list(arrived)
