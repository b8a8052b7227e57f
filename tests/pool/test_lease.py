"""The lease against counts, and every step its table refuses."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from omni_async.errors import OmniAsyncError
from omni_async.model import Region
from omni_async.pool.lease import TABLE, Event, Lease, LeaseError, State
from omni_async.pool.memory import AnonymousMemory
from omni_async.pool.segment import Segment


def _segment() -> Segment:
    block = AnonymousMemory().allocate(4096)
    return Segment(block, Region(3, block.address, block.nbytes, b"", -1), 64)


class Notes:
    """A book that only notes what it hears."""

    def __init__(self) -> None:
        self.moves: list[tuple[State, State]] = []

    def moved(self, lease: Lease, before: State) -> None:
        self.moves.append((before, lease.state))


def _lease(book: Notes | None = None) -> Lease:
    return Lease(book or Notes(), _segment(), 128, 100, 128, 7)


def _do(lease: Lease, event: Event) -> None:
    {
        Event.HOLD: lease.hold,
        Event.DROP: lease.drop,
        Event.PIN: lease.pin,
        Event.UNPIN: lease.unpin,
        Event.QUARANTINE: lease.quarantine,
    }[event]()


class Counts(RuleBasedStateMachine):
    """Two counts and a flag say everything."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Notes()
        self.lease = _lease(self.book)
        self.holds, self.pins, self.given_up = 1, 0, False

    def allowed(self, event: Event) -> bool:
        if not self.holds and not self.pins:
            return False
        if event is Event.DROP:
            return self.holds > 0
        if event in (Event.UNPIN, Event.QUARANTINE):
            return self.pins > 0
        return True

    @rule(event=st.sampled_from(Event))
    def step(self, event: Event) -> None:
        before = (self.lease.state, self.lease.holds, self.lease.pins, len(self.book.moves))
        if not self.allowed(event):
            with pytest.raises(LeaseError):
                _do(self.lease, event)
            after = (self.lease.state, self.lease.holds, self.lease.pins, len(self.book.moves))
            assert after == before
            return
        _do(self.lease, event)
        self.holds += {Event.HOLD: 1, Event.DROP: -1}.get(event, 0)
        self.pins += {Event.PIN: 1, Event.UNPIN: -1}.get(event, 0)
        self.given_up = self.pins > 0 and (self.given_up or event is Event.QUARANTINE)

    def state(self) -> State:
        if self.pins:
            return State.QUARANTINED if self.given_up else State.IN_FLIGHT
        return State.HELD if self.holds else State.FREE

    @invariant()
    def agree(self) -> None:
        assert self.lease.state is self.state()
        assert (self.lease.holds, self.lease.pins) == (self.holds, self.pins)
        frees = [after for _, after in self.book.moves if after is State.FREE]
        assert len(frees) == (self.lease.state is State.FREE)
        # That an operation begins is not told: it changes nothing in a book.
        assert State.IN_FLIGHT not in [after for _, after in self.book.moves]
        state = State.HELD
        for before, after in self.book.moves:
            assert before is state or (before is State.IN_FLIGHT and state is State.HELD)
            state = after


TestCounts = Counts.TestCase
TestCounts.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def test_the_table_is_complete() -> None:
    assert len(TABLE) == len(State)
    assert all(len(row) == len(Event) for row in TABLE)
    assert not any(TABLE[State.FREE])  # a way back would be a use after free
    for state in State:
        for event in Event:
            targets = TABLE[state][event] or (None, None, None)
            # with pins left it is never free, without pins never in flight
            assert targets[2] in (None, State.IN_FLIGHT, State.QUARANTINED)
            assert targets[1] in (None, State.HELD)
            assert targets[0] in (None, State.FREE)


def test_quarantine_lasts_until_the_last_operation_has_ended() -> None:
    lease = _lease()
    lease.pin()
    lease.pin()
    lease.quarantine()
    lease.quarantine()
    lease.drop()
    lease.unpin()
    states = [lease.state]
    lease.unpin()
    states.append(lease.state)
    assert states == [State.QUARANTINED, State.FREE]


def test_an_operation_may_hand_over_to_a_holder() -> None:
    lease = _lease()
    lease.pin()
    lease.drop()
    lease.hold()
    lease.unpin()
    assert lease.state is State.HELD


@pytest.mark.parametrize("event", list(Event))
def test_use_after_free_is_named(event: Event) -> None:
    lease = _lease()
    lease.drop()
    with pytest.raises(
        LeaseError, match=r"use after free: <Lease #7 FREE, 100 bytes at offset 128"
    ):
        _do(lease, event)
    with pytest.raises(LeaseError, match="use after free"):
        lease.view()


def test_other_wrong_steps_are_named() -> None:
    lease = _lease()
    with pytest.raises(LeaseError, match="unpin refused, unpin below zero"):
        lease.unpin()
    with pytest.raises(LeaseError, match="quarantine without an operation in flight"):
        lease.quarantine()
    lease.pin()
    lease.drop()
    with pytest.raises(LeaseError, match=r"double drop.*IN_FLIGHT.*region 3, 0 holders, 1 pins"):
        lease.drop()


def test_a_wrong_step_is_a_bug_not_an_error_of_the_library() -> None:
    assert issubclass(LeaseError, RuntimeError)
    assert not issubclass(LeaseError, OmniAsyncError)


def test_the_view_is_the_lease_and_no_more() -> None:
    lease = _lease()
    lease.view()[:] = b"x" * 100
    assert bytes(lease.keep[127:229]) == b"\0" + b"x" * 100 + b"\0"
    assert lease.address == lease.segment.address + 128
