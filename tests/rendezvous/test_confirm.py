"""What was READ over a line whose end proves nothing is confirmed: both halves, without I/O."""

from __future__ import annotations

from omni_async.model import TransferKey
from omni_async.rendezvous.messages import Done, Fail, FailCode, Offer, PlaceWord, Pull, Release
from omni_async.rendezvous.payload import Payload
from omni_async.rendezvous.receiver import Phase, Receiver
from omni_async.rendezvous.sender import Sender

KEY = TransferKey("0", "1", "key")


class Slot:
    """A lease that notes when it is dropped."""

    def __init__(self) -> None:
        self.free = False
        self.quarantined = False

    def pin(self) -> None: ...
    def unpin(self) -> None: ...
    def drop(self) -> None:
        self.free = True

    def quarantine(self) -> None:
        self.quarantined = True


class Line:
    """One payload on offer to one receiver; words travel when they are told to."""

    def __init__(self) -> None:
        self.slot = Slot()
        payload = Payload(
            100, [20, 80], places=[PlaceWord(1, 0, 128, 1)], apart=[], leases=[self.slot]
        )
        self.sender = Sender(300.0, lends_memory=False)
        self.sender.peer_opened(1, "1")
        self.sender.put(KEY, payload, "key", 1, 0.0)
        self.receiver = Receiver()
        self.receiver.connected()
        self.op = self.receiver.want(KEY)
        self.there()
        self.back()
        [(_, offer)] = self.receiver.events
        assert isinstance(offer, Offer)
        self.receiver.events.clear()

    def there(self) -> None:
        for word in self.receiver.words():
            self.sender.receive(1, word)

    def back(self) -> None:
        said, self.sender.outbox = self.sender.outbox, []
        for _, word in said:
            self.receiver.receive(word)


def test_what_lay_there_all_the_time_is_confirmed() -> None:
    line = Line()
    assert line.receiver.confirm(line.op)
    assert line.receiver.phase(line.op) is Phase.CONFIRMING
    assert line.receiver.urgent
    line.there()
    assert not line.slot.free
    line.back()
    assert line.receiver.events == [(line.op, Done(line.op))]
    assert line.receiver.phase(line.op) is Phase.LANDED
    assert line.receiver.consume(line.op, holding=False)
    line.there()
    assert line.slot.free


def test_a_line_that_ends_before_the_answer() -> None:
    """The sender has freed it; whatever was read is not believed."""
    line = Line()
    line.receiver.confirm(line.op)
    line.sender.peer_ended(1, proven=True)
    line.receiver.lost()
    assert line.receiver.events == [(line.op, None)]
    assert line.receiver.phase(line.op) is None
    assert not line.receiver.cancelled_writes()
    assert not line.receiver.consume(line.op, holding=False)
    assert not line.slot.quarantined


def test_a_line_that_had_ended_before() -> None:
    line = Line()
    line.receiver.lost()
    assert not line.receiver.confirm(line.op)
    assert line.receiver.words() == []


def test_giving_up_while_it_is_asked() -> None:
    line = Line()
    line.receiver.confirm(line.op)
    assert not line.receiver.cancel(line.op)  # nothing lands any more: no slot has to wait
    words = line.receiver.words()
    assert words == [Pull(line.op, []), Release(line.op, False)]
    for word in words:
        line.sender.receive(1, word)
    line.back()
    assert line.receiver.events == []
    assert line.receiver.ignored == 1
    assert not line.slot.free  # it is on offer still
    assert line.sender.directory.get(KEY) is not None


def test_what_nobody_claims_is_not_confirmed() -> None:
    line = Line()
    line.receiver.confirm(line.op)
    line.sender.receive(1, Release(line.op, True))
    line.there()
    [(_, refusal)] = line.sender.outbox
    assert isinstance(refusal, Fail)
    assert refusal.code is FailCode.REFUSED
    line.back()
    assert line.receiver.events == [(line.op, refusal)]
    assert line.receiver.phase(line.op) is None


def test_a_writer_takes_it_for_a_pull_of_another_length() -> None:
    line = Line()
    line.sender._lends_memory = True
    line.receiver.confirm(line.op)
    line.there()
    [(_, refusal)] = line.sender.outbox
    assert isinstance(refusal, Fail)
