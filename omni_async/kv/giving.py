"""A producer's side of all transfers of KV caches, without I/O.

In: sessions, layers that are ready, words of consumers, ends of writes. Out: words, writes to begin, sessions' ends.
Never: reaches a clock, a line, an engine; takes a session's end back.

::

    OPEN ──seal──> SEALED ──all landed at all consumers──> DELIVERED
      └────────────────┴──abort, fault, loss, refusal──> FAILING ──last write has ended──> FAILED

A share is one consumer's part in a session. It may be asked for before the session is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import (
    EngineFault,
    OmniAsyncError,
    PeerLost,
    ProtocolError,
    TransferCancelled,
    UsageError,
)
from .audience import Seat
from .given import GivenShare, Session, State
from .reasons import named, own_error, reason_of
from .remembered import End, Remembered
from .words import (
    AnyWord,
    Ask,
    Begun,
    Decline,
    Drop,
    Ended,
    Landed,
    Mode,
    Ready,
    Reason,
    Room,
    Took,
)


class Giving:
    """All sessions of one producer.

    Args:
        layers: of the cache.
        writes: whether bytes are written from here (WRITE), or read by the consumer.
        plan: works out what to move for a share, and sets ``plan`` and ``staged``.
            Raises UsageError or ProtocolError where the blocks do not fit.
        seat: where a consumer stands in its instance.
        describe: a peer, for people.
        who: the consumer at the end of a line, the same on another line of its.
        where: whatever has to be known at a share's end as it was when it was asked for.

    A ``peer`` is a line to a consumer.
    """

    def __init__(
        self,
        layers: int,
        *,
        writes: bool,
        plan: Callable[[GivenShare], None],
        seat: Callable[[str], Seat],
        describe: Callable[[str], str],
        who: Callable[[str], str] = str,
        where: Callable[[str], Any] = str,
    ) -> None:
        self._layers = layers
        self._who = who
        self._where = where
        self._writes = writes
        self._plan = plan
        self._seat = seat
        self._describe = describe
        self.sessions: dict[str, Session] = {}
        self._shares: dict[tuple[str, int], GivenShare] = {}
        self._waiting: dict[str, list[GivenShare]] = {}
        """Asked for, while there is no session."""
        self._ends = Remembered()
        self._closed: str | None = None
        self.words: list[tuple[str, AnyWord]] = []
        self.writes: list[tuple[GivenShare, int, Room | None]] = []
        self.stirred: list[Session] = []
        """Sessions about which there is something to be known."""

    # --- the caller -------------------------------------------------------------------------------

    def open(self, request_id: str, mode: Mode, consumers: int) -> Session:
        """Begin a session.

        Raises:
            UsageError: the request has one.
        """
        if request_id in self.sessions:
            raise UsageError(f"request {request_id!r} is being sent already; abort that first")
        session = self.sessions[request_id] = Session(request_id, mode, consumers)
        declined = self._ends.begun(request_id)
        if declined is not None:
            self._fail(session, declined.reason, declined.text)
            return session
        for share in self._waiting.pop(request_id, []):
            if session.state < State.DELIVERED:
                self._join(session, share)
            else:  # an earlier one did not fit
                self._end_as(share, self._ends[request_id])
        return session

    def assign(self, session: Session, blocks: list[int], tokens: int) -> None:
        """The cache is in these blocks."""
        session.blocks, session.tokens = blocks, tokens
        for share in session.shares:
            if share.reason is None:
                self._begin(session, share)

    def ready(self, session: Session, layers: Iterable[int]) -> None:
        """These layers have been computed."""
        for layer in layers:
            if layer not in session.ready:
                session.ready[layer] = None
                if session.blocks is not None:
                    for share in session.shares:
                        self._offer(share, layer)

    def seal(self, session: Session) -> None:
        """All layers are ready, told or not; no more words of the caller follow."""
        self.ready(session, range(self._layers))
        if session.state is State.OPEN:
            session.state = State.SEALED
            self._look(session)

    def fail(self, session: Session, reason: Reason, text: str) -> None:
        """Give a session up; its consumers are told at once."""
        if session.state < State.DELIVERED:
            self._fail(session, reason, text)

    def abort(self, request_id: str, text: str) -> None:
        """There will be no session: whoever has asked, or asks, is told so."""
        self._ends.add(request_id, End(Reason.ABORTED, text))
        for share in self._waiting.pop(request_id, []):
            self._end(share, Reason.ABORTED, text)

    def close(self, text: str) -> None:
        """Give everything up; whoever asks from now on is told so."""
        self._closed = text
        for session in list(self.sessions.values()):
            self.fail(session, Reason.CLOSED, text)
        for shares in self._waiting.values():
            for share in shares:
                self._end(share, Reason.CLOSED, text)
        self._waiting.clear()

    def remembered(self) -> dict[str, End]:
        """Ends that are told to consumers which ask late, since this was last asked: see :meth:`forget`."""
        new, self._ends.new = self._ends.new, {}
        return new

    def forget(self, request_id: str, end: End | None = None) -> None:
        """Nobody asks for it any more; ``end``: if that is what is remembered of it."""
        self._ends.forget(request_id, end)

    @property
    def waiting(self) -> int:
        """Consumers that ask for a request of which there is no session yet."""
        return sum(map(len, self._waiting.values()))

    # --- consumers --------------------------------------------------------------------------------

    def heard(self, peer: str, word: AnyWord) -> None:
        """A consumer's word.

        Raises:
            ProtocolError: it makes no sense.
        """
        if isinstance(word, Ask):
            self._asked(peer, word)
        elif isinstance(word, Drop):
            self._dropped(peer, word)
        elif isinstance(word, Took):
            self._took(peer, word)
        elif isinstance(word, Room):
            share = self._share(peer, word.ticket)
            if share is not None and share.reason is None:
                share.rooms.append(word)
                self._write(share)
        elif isinstance(word, Decline):
            self._declined(word)
        else:
            raise ProtocolError(f"a consumer does not say {type(word).__name__}", peer=peer)

    def lost(self, peer: str, name: str) -> None:
        """The line to a consumer has ended."""
        text = f"the consumer {name} was lost"
        for share in list(self._shares.values()):
            if share.peer != peer:
                continue
            if share.session is None:
                self._unwait(share)
                self._release(share)
            elif share.session.over or len(share.landed) == self._layers:
                self._release(share)
            else:
                share.owes = False
                share.reason = share.reason or Reason.DROPPED
                session = share.session
                key = session.request_id
                self._failing(session, PeerLost(named(key, text), key=key, peer=name))
                if not share.under_way:
                    self._release(share)
                self._look(session)

    def turn_away(self, peer: str, ask: Ask, text: str) -> None:
        """An ask of a consumer whose layout does not fit; it was told so."""
        share = GivenShare(peer, self._who(peer), ask)
        self._refuse(share, text)

    def refused(self, peer: str, text: str) -> None:
        """Its layout does not fit: whatever it asks for ends so."""
        for share in list(self._shares.values()):
            if share.peer == peer and share.reason is None:
                self._refuse(share, text)

    def written(self, share: GivenShare, layer: int, problem: str | None) -> None:
        """A write has ended: no byte of it is under way any more."""
        slot = share.under_way.pop(layer)
        session = share.session
        assert session is not None
        if problem is None:
            share.landed.add(layer)
            if share.reason is None:
                self._say_landed(share, layer, slot)
        elif share.reason is None:
            share.reason, share.text = Reason.ENGINE, problem
            share.owes = True
            if share.under_way:
                self._say_ended(share, under_way=True)
            error = EngineFault(
                f"layer {layer} of request {session.request_id!r} was not written to the consumer "
                f"{self._describe(share.peer)}: {problem}"
            )
            self._failing(session, error)
        if share.reason is not None and not share.under_way:
            if share.owes:
                self._say_ended(share, under_way=False)
            self._release(share)
        self._look(session)

    # --- within -----------------------------------------------------------------------------------

    def _asked(self, peer: str, ask: Ask) -> None:
        who = self._who(peer)
        if (who, ask.ticket) in self._shares:
            raise ProtocolError(f"ticket {ask.ticket} was used twice", peer=peer)
        share = self._shares[who, ask.ticket] = GivenShare(peer, who, ask, self._where(peer))
        session = self.sessions.get(ask.request_id)
        self._ends.asked_again(ask.request_id, who)
        if session is not None and session.state < State.DELIVERED:
            self._join(session, share)
        elif ask.request_id in self._ends:
            self._end_as(share, self._ends[ask.request_id])
        elif self._closed is not None:
            self._end(share, Reason.CLOSED, self._closed)
        else:
            self._waiting.setdefault(ask.request_id, []).append(share)

    def _join(self, session: Session, share: GivenShare) -> None:
        if share.ask.mode is not session.mode:
            self._refuse(
                share,
                f"request {session.request_id!r} is sent in mode {session.mode.value!r}, and was asked "
                f"for in mode {share.ask.mode.value!r}",
            )
            return
        seat = self._seat(share.peer)
        objection = session.audience.objection(share.who, seat)
        if objection is not None:
            self._refuse(share, objection, spoil=False)
            return
        session.audience.add(share.who, seat)
        share.session = session
        session.shares.append(share)
        self.stirred.append(session)
        if session.blocks is not None:
            self._begin(session, share)

    def _begin(self, session: Session, share: GivenShare) -> None:
        assert session.blocks is not None
        try:
            self._plan(share)
        except (UsageError, ProtocolError) as error:
            self._refuse(share, str(error))
            return
        self._say(
            share, Begun(share.ask.ticket, session.blocks, session.tokens, staged=share.staged)
        )
        for layer in session.ready:
            self._offer(share, layer)

    def _offer(self, share: GivenShare, layer: int) -> None:
        if share.reason is not None:
            return
        if self._writes:
            share.todo.append(layer)
            self._write(share)
        else:
            share.told.add(layer)
            self._say(share, Ready(share.ask.ticket, [layer]))

    def _write(self, share: GivenShare) -> None:
        while share.todo and (share.rooms or not share.staged):
            room = share.rooms.popleft() if share.staged else None
            layer = share.todo.popleft()
            share.under_way[layer] = -1 if room is None else room.slot
            self.writes.append((share, layer, room))

    def _took(self, peer: str, word: Took) -> None:
        share = self._share(peer, word.ticket)
        if share is None or share.reason is not None:
            return  # its consumer is being told that it has failed
        session = share.session
        if session is None or not share.told.issuperset(word.layers):
            raise ProtocolError(
                f"layers {word.layers} of request {share.ask.request_id!r} were read before they were ready",
                peer=peer,
            )
        share.landed.update(word.layers)
        self._say(share, Landed(share.ask.ticket, word.layers))
        self._look(session)

    def _dropped(self, peer: str, word: Drop) -> None:
        share = self._shares.get((self._who(peer), word.ticket))
        why = f": {word.text}" if word.text else ""
        text = f"the consumer gave it up{why}"
        if share is None:
            self.words.append((peer, Ended(word.ticket, Reason.DROPPED, text, under_way=False)))
            return
        share.peer = peer  # it may be told on another line than before
        session = share.session
        if session is None:
            self._unwait(share)
            end = End(Reason.DROPPED, text, unwanted=True, by=share.who)
            self._ends.add(share.ask.request_id, end)
            self._end(share, Reason.DROPPED, text)
            return
        share.owes = True
        if share.reason is None:
            share.reason, share.text = Reason.DROPPED, text
            share.todo.clear()
            error = TransferCancelled(
                f"request {session.request_id!r} was given up by the consumer {self._describe(peer)}{why}",
                key=session.request_id,
                peer=self._describe(peer),
            )
            self._failing(session, error)
        if not share.under_way:
            self._say_ended(share, under_way=False)
            self._release(share)
        self._look(session)

    def _declined(self, word: Decline) -> None:
        session = self.sessions.get(word.request_id)
        if session is None:
            self._ends.add(word.request_id, End(word.reason, word.text, unwanted=True))
        elif session.state < State.DELIVERED:
            self._fail(session, word.reason, word.text)

    def _refuse(self, share: GivenShare, text: str, *, spoil: bool = True) -> None:
        """End one share; the session with it, for it can never become whole."""
        session = share.session or self.sessions.get(share.ask.request_id)
        self._end(share, Reason.REFUSED, text)
        if session is not None and spoil:
            self._failing(session, ProtocolError(text, peer=self._describe(share.peer)))
            self._look(session)

    def _end(self, share: GivenShare, reason: Reason, text: str) -> None:
        """Tell a consumer that its share has failed, now and once more at the end of the last write."""
        share.reason, share.text, share.owes = reason, text, True
        share.todo.clear()
        self._say_ended(share, under_way=bool(share.under_way))
        if not share.under_way:
            self._release(share)

    def _end_as(self, share: GivenShare, end: End) -> None:
        self._end(share, end.reason, end.text)

    def _fail(self, session: Session, reason: Reason, text: str) -> None:
        for share in session.shares:
            if share.reason is None and len(share.landed) < self._layers:
                self._end(share, reason, text)
        self._failing(session, own_error(session.request_id, reason, text))
        self._look(session)

    def _failing(self, session: Session, error: OmniAsyncError) -> None:
        """It can never become whole; what else it has to give goes on no further."""
        if session.state >= State.DELIVERED:
            return
        session.state, session.error = State.FAILING, error
        reason = reason_of(error)
        self._ends.add(session.request_id, End(reason, str(error)))
        for share in session.shares:
            if share.reason is None and len(share.landed) < self._layers:
                self._end(share, reason, str(error))

    def _look(self, session: Session) -> None:
        """Whether it is over."""
        if session.state is State.FAILING and not session.writing:
            session.state = State.FAILED
        elif (
            session.state is State.SEALED
            and session.audience.complete
            and all(len(share.landed) == self._layers for share in session.shares)
        ):
            session.state = State.DELIVERED
        self.stirred.append(session)
        if session.over and self.sessions.get(session.request_id) is session:
            del self.sessions[session.request_id]
            for share in session.shares:
                if not share.under_way:
                    self._release(share)

    def _unwait(self, share: GivenShare) -> None:
        waiting = self._waiting.get(share.ask.request_id, [])
        if share in waiting:
            waiting.remove(share)
            if not waiting:
                del self._waiting[share.ask.request_id]

    def _share(self, peer: str, ticket: int) -> GivenShare | None:
        """What this line is about: not what was asked for on another."""
        share = self._shares.get((self._who(peer), ticket))
        return share if share is not None and share.peer == peer else None

    def _release(self, share: GivenShare) -> None:
        self._shares.pop((share.who, share.ask.ticket), None)

    def _say(self, share: GivenShare, word: AnyWord) -> None:
        self.words.append((share.peer, word))

    def _say_landed(self, share: GivenShare, layer: int, slot: int) -> None:
        """In one word with those before it, unless that was told."""
        who, word = self.words[-1] if self.words else ("", None)
        if who != share.peer or type(word) is not Landed or word.ticket != share.ask.ticket:
            word = Landed(share.ask.ticket, [], [])
            self._say(share, word)
        word.layers.append(layer)
        if share.staged:
            word.slots.append(slot)

    def _say_ended(self, share: GivenShare, *, under_way: bool) -> None:
        reason = share.reason or Reason.ABORTED
        self._say(share, Ended(share.ask.ticket, reason, share.text, under_way))
