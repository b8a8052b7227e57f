"""What the two cores decide where the world of stories, or a fresh look, had found them wrong."""

from __future__ import annotations

from typing import Any

import pytest

from omni_async.errors import ProtocolError, TransferCancelled
from omni_async.kv.audience import Seat
from omni_async.kv.given import GivenShare, State
from omni_async.kv.giving import Giving
from omni_async.kv.taking import Step, TakenShare, Taking
from omni_async.kv.words import (
    LONGEST_TEXT,
    Ask,
    Begun,
    Decline,
    Drop,
    Ended,
    Landed,
    Mode,
    Reason,
    Room,
    Took,
    decode,
    encode,
)

LAYERS = 2


def giving(*, writes: bool = True, who: Any = str, where: Any = str) -> Giving:
    return Giving(
        LAYERS,
        writes=writes,
        plan=lambda share: None,
        seat=lambda _: Seat(),
        describe=str,
        who=who,
        where=where,
    )


def taking(*, written_to: bool = True) -> Taking:
    return Taking(LAYERS, written_to=written_to, plan=lambda share, word: None, describe=str)


def ask(ticket: int, request: str = "r", mode: Mode = Mode.WRITE) -> Ask:
    return Ask(ticket, request, [0], mode)


def said(core: Giving | Taking) -> list[Any]:
    words = [word for _, word in core.words]
    core.words.clear()
    return words


def begun(core: Giving, mode: Mode = Mode.WRITE) -> Any:
    session = core.open("r", mode, 1)
    core.assign(session, [0], -1)
    return session


def test_who_waits_behind_one_that_does_not_fit_is_told_too() -> None:
    core = giving()
    core.heard("A", ask(1, mode=Mode.READ))
    core.heard("A", ask(2))
    session = core.open("r", Mode.WRITE, 1)
    assert session.state is State.FAILED
    assert [(type(word), word.ticket) for word in said(core)] == [(Ended, 1), (Ended, 2)]
    assert not core._shares


def test_blocks_that_are_told_to_a_session_that_has_failed_begin_nothing() -> None:
    core = giving()
    core.heard("A", ask(1))
    session = core.open("r", Mode.WRITE, 1)
    core.fail(session, Reason.ABORTED, "no")
    said(core)
    core.assign(session, [0], -1)
    core.seal(session)
    assert not said(core)
    assert not core.writes


def test_layers_that_are_ready_before_there_are_blocks_are_written_once() -> None:
    core = giving()
    core.heard("A", ask(1))
    session = core.open("r", Mode.WRITE, 1)
    core.ready(session, [1])
    assert not core.writes
    core.assign(session, [0], -1)
    core.ready(session, [1])
    assert [layer for _, layer, _ in core.writes] == [1]


@pytest.mark.parametrize("staged", [False, True])
def test_writes_that_end_together_are_told_in_one_word(staged: bool) -> None:
    core = giving()
    core.heard("A", ask(1))
    core.heard("A", ask(2, "another"))
    sessions = [begun(core), core.open("another", Mode.WRITE, 1)]
    for session in sessions:
        for share in session.shares:
            share.staged = staged
        core.assign(session, [0], -1)
        core.seal(session)
    if staged:
        for ticket in (1, 2):
            for slot in (5, 6):
                core.heard("A", Room(ticket, slot, 7, 0, 64))
    writes, core.writes = list(core.writes), []
    said(core)
    for share, layer, _ in writes[:3]:
        core.written(share, layer, None)
    assert said(core) == [
        Landed(1, [0, 1], [5, 6] if staged else []),
        Landed(2, [0], [5] if staged else []),
    ]
    core.written(writes[3][0], writes[3][1], None)
    assert said(core) == [Landed(2, [1], [6] if staged else [])]
    assert [session.state for session in sessions] == [State.DELIVERED] * 2


@pytest.mark.parametrize("layers", [[], [0]])
def test_a_reader_that_has_read_before_there_was_anything_makes_no_sense(layers: list[int]) -> None:
    core = giving(writes=False)
    core.heard("A", ask(1))
    with pytest.raises(ProtocolError, match="before they were ready"):
        core.heard("A", Took(1, layers))


def test_who_asks_a_closed_producer_is_told_so() -> None:
    core = giving()
    core.close("it was closed")
    core.heard("A", ask(1))
    [word] = said(core)
    assert (word.reason, word.text, word.under_way) == (Reason.CLOSED, "it was closed", False)
    assert not core.waiting


def test_a_consumer_whose_layout_does_not_fit_spoils_the_session_it_asks_for() -> None:
    core = giving()
    session = begun(core)
    core.turn_away("A", ask(1), "float16 is not bfloat16")
    assert session.state is State.FAILED
    assert isinstance(session.error, ProtocolError)
    assert "float16" in str(session.error)
    [word] = said(core)
    assert word.reason is Reason.REFUSED
    assert not core._shares


def test_a_consumer_hears_on_its_new_line_of_the_end_of_a_write_of_the_old_one() -> None:
    core = giving(who=lambda line: line[0])
    core.heard("A1", ask(1))
    session = begun(core)
    core.ready(session, [0])
    [(share, layer, _)] = core.writes
    core.lost("A1", "A")
    assert not session.over
    core.words.clear()
    core.heard("A2", Drop(1))
    assert not core.words
    core.written(share, layer, None)
    assert core.words == [("A2", Ended(1, Reason.DROPPED, "", under_way=False))]
    assert session.state is State.FAILED
    assert not core._shares


def test_another_line_of_a_consumer_says_nothing_of_what_was_asked_on_this_one() -> None:
    core = giving(who=lambda line: line[0])
    core.heard("A1", ask(1))
    session = begun(core)
    core.lost("A2", "A")
    core.heard("A2", Room(1, 1, 0, 0, 8))
    assert session.state is State.OPEN
    assert not session.shares[0].rooms


def test_a_share_keeps_where_the_caches_lay_when_it_was_asked_for() -> None:
    places = ["here"]
    core = giving(where=lambda _: places[-1])
    core.heard("A", ask(1))
    places.append("there")
    session = begun(core)
    assert session.shares[0].where == "here"


def doubtful() -> tuple[Taking, TakenShare]:
    """A share whose producer X was lost without a proof, and Y is there now."""
    core = taking()
    share = core.want("P", "r", [0], Mode.WRITE, staged=False)
    core.met("P", "X")
    core.heard("P", Begun(share.ticket, [0], -1))
    core.lost("P", proven=False)
    core.doubtful.clear()
    core.met("P", "Y")
    return core, share


def test_the_proven_end_of_a_successor_proves_nothing_of_who_was_there_before() -> None:
    core, share = doubtful()
    core.lost("P", proven=True)
    assert share.doubtful
    assert not share.free


def test_a_successor_cannot_tell_when_the_last_write_of_another_has_ended() -> None:
    core, share = doubtful()
    core.heard("P", Ended(share.ticket, Reason.DROPPED, "", under_way=False))
    assert share.doubtful


def test_the_same_producer_is_asked_when_its_last_write_has_ended() -> None:
    core, share = doubtful()
    said(core)
    core.lost("P", proven=False)
    core.met("P", "X")
    assert said(core) == [Drop(share.ticket)]
    core.heard("P", Ended(share.ticket, Reason.DROPPED, "", under_way=False))
    assert share.free


def test_a_producer_that_turns_out_not_to_fit_may_still_write() -> None:
    core = taking()
    share = core.want("P", "r", [0], Mode.WRITE, staged=False)
    core.met("P", "X")
    core.heard("P", Begun(share.ticket, [0], -1))
    said(core)
    core.refused("P", ProtocolError("another layout"))
    assert share.step is Step.FAILED
    assert not share.free
    refusal = Decline("r", "another layout", Reason.REFUSED)
    assert said(core) == [refusal, Drop(share.ticket, "another layout")]


def test_a_producer_that_does_not_fit_hears_who_would_have_asked_it() -> None:
    core = taking()
    share = core.want("P", "r", [0], Mode.WRITE, staged=False)
    core.refused("P", ProtocolError("another layout"))
    assert share.free
    assert said(core) == [Decline("r", "another layout", Reason.REFUSED)]


def test_each_layer_of_a_word_is_copied_by_itself() -> None:
    core = taking()
    share = core.want("P", "r", [0], Mode.WRITE, staged=True)
    core.met("P", "X")
    core.heard("P", Begun(share.ticket, [0], -1, staged=True))
    core.heard("P", Landed(share.ticket, [0, 1], [1, 2]))
    core.cancel(share, TransferCancelled("no"))
    core.heard("P", Ended(share.ticket, Reason.DROPPED, "", under_way=False))
    core.copied(share, [0], None)
    assert not share.free
    core.copied(share, [1], None)
    assert share.free
    assert not core.shares


def test_a_plan_that_fails_ends_one_share_for_both_sides() -> None:
    def plan(share: GivenShare) -> None:
        raise ProtocolError("2 blocks are not 3")

    core = Giving(LAYERS, writes=True, plan=plan, seat=lambda _: Seat(), describe=str)
    core.heard("A", ask(1))
    session = begun(core)
    [word] = said(core)
    assert (type(word), word.reason, word.text) == (Ended, Reason.REFUSED, "2 blocks are not 3")
    assert session.state is State.FAILED


@pytest.mark.parametrize("copied", [True, False])
def test_what_lies_in_landing_slots_as_a_whole_needs_its_producer_no_more(copied: bool) -> None:
    core = taking()
    share = core.want("P", "r", [0], Mode.WRITE, staged=True)
    core.met("P", "X")
    core.heard("P", Begun(share.ticket, [0], -1, staged=True))
    core.heard("P", Landed(share.ticket, [0, 1], [1, 2]))
    core.lost("P", proven=False)
    core.copied(share, [0], None)
    core.copied(share, [1], None if copied else "no memory")
    assert share.step is (Step.DONE if copied else Step.FAILED)
    assert share.free
    assert not core.doubtful


def test_who_gave_it_up_may_ask_for_it_again() -> None:
    core = giving()
    core.heard("A", ask(1))
    core.heard("A", Drop(1))
    core.heard("A", ask(2))
    core.heard("B", Drop(7))  # of nothing: somebody else's word changes nothing
    session = begun(core)
    assert session.state is State.OPEN
    assert [share.ask.ticket for share in session.shares] == [2]


def test_what_another_consumer_gave_up_stays_given_up() -> None:
    core = giving()
    core.heard("A", ask(1))
    core.heard("A", Drop(1))
    said(core)
    core.heard("B", ask(1))
    [word] = said(core)
    assert (type(word), word.reason) == (Ended, Reason.DROPPED)
    assert begun(core).state is State.FAILED


def test_an_end_is_forgotten_in_its_time_and_not_in_an_older_ones() -> None:
    core = giving()
    core.abort("r", "first")
    [first] = core.remembered().items()
    core.abort("r", "second")
    [second] = core.remembered().items()
    assert core.remembered() == {}
    core.forget(*first)
    core.heard("A", ask(1))
    [word] = said(core)
    assert word.text == "second"
    core.forget(*second)
    core.heard("A", ask(2))
    assert said(core) == []
    assert core.waiting == 1


def test_a_long_reason_is_cut_where_it_is_told_and_remembered() -> None:
    text = "x" * (1 << 20)
    [told] = [decode(encode(word)) for word in [Ended(1, Reason.ABORTED, text, False)]]
    assert isinstance(told, Ended)
    assert len(told.text) <= LONGEST_TEXT
    assert "1,048,576 characters" in told.text
    core = giving()
    core.abort("r", text)
    [(_, end)] = core.remembered().items()
    assert len(end.text) <= LONGEST_TEXT
