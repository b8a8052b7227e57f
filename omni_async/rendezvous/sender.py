"""The sender's half of the conversation, without I/O.

In: words of receivers, payloads, ends of peers and of writes, the time. Out: words to send, writes to begin.
Never: reaches a clock, a channel, an engine; trusts a receiver's lengths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from ..model import TransferKey
from .directory import Directory, Entry, EntryState, Ref
from .messages import (
    Ahead,
    Bye,
    Cancel,
    Credit,
    Done,
    Fail,
    FailCode,
    Message,
    Open,
    PlaceWord,
    Pull,
    Recall,
    Release,
    Want,
)
from .payload import Payload
from .stream_writers import Writers

AHEAD_LIMIT = 256
"""Offers made ahead that one receiver may have unused; beyond it has to ask."""


class Write(NamedTuple):
    """A WRITE the engine is to begin; its end is told by :meth:`Sender.written`."""

    ref: Ref
    payload: Payload
    places: list[PlaceWord]


class Sender:
    """One sender endpoint and all its receivers."""

    def __init__(self, ttl: float, *, lends_memory: bool = True) -> None:
        self.directory = Directory()
        self._lends_memory = lends_memory
        """Whether memory may be offered ahead. Not where receivers read it by its address (READ): it
        would be theirs to read at any time, and could not be freed on this side's own account."""
        self.outbox: list[tuple[int, Message]] = []
        """(peer, word), to be sent in order."""
        self.writes: list[Write] = []
        self.ignored = 0
        """Words that came too late or twice, and changed nothing."""
        self.streams = Writers(self._say)
        self._ttl = ttl
        self._parked: dict[TransferKey, dict[Ref, None]] = {}
        self._parked_key: dict[Ref, TransferKey] = {}
        self._writing: set[Ref] = set()
        self._abandoned: set[Ref] = set()
        """Writes whose receiver has cancelled or is gone: they end, and change nothing."""
        self._ghosts: dict[int, list[Ref]] = {}
        """Per vanished peer: operations whose memory it may still touch."""
        self._by_peer: dict[int, set[Ref]] = {}
        self._last_op: dict[int, int] = {}
        """Per peer: the newest operation. Ids grow, so an older Want is one that came twice."""
        self._pulled: set[Ref] = set()
        """Claims whose write has begun: a second Pull must not write into a slot handed out since."""
        self._stage_of: dict[int, str] = {}
        self._receivers: dict[str, set[int]] = {}
        self._lent: dict[int, int] = {}
        """Per peer: offers made ahead that it has not used."""
        self._ahead_ids = itertools.count(-1, -1)
        self._probes: set[Ref] = set()
        """Parked operations that ask only once, while an offer made ahead is being recalled."""

    @property
    def parked(self) -> int:
        return len(self._parked_key)

    def put(
        self, key: TransferKey, payload: Payload, owner: str, consumers: int, now: float
    ) -> None:
        """Offer a payload, first to those who wait for it; one that is put ``now`` at infinity never
        expires.

        Raises:
            KeyClaimed: a receiver has a claim on the payload that was put before.
        """
        self.directory.check(key)
        previous = self.directory.get(key)
        if previous is not None:
            self._unlist(previous, EntryState.DROPPED)
        entry = self.directory.offer(key, payload, owner, consumers, now + self._ttl)
        if key in self._parked:
            self._serve(entry)
        elif consumers == 1:
            self._offer_ahead(entry)

    def peer_opened(self, peer: int, stage: str) -> None:
        """A receiver has come: the only one of its stage is offered what is put before it asks."""
        self._stage_of[peer] = stage
        self._receivers.setdefault(stage, set()).add(peer)

    def receive(self, peer: int, message: Message) -> None:
        """A receiver's word. Unknown operations are ignored and counted, whatever they ask."""
        if isinstance(message, Want):
            self._want(peer, message)
        elif isinstance(message, Release):
            self._release((peer, message.op), message.consumed)
        elif isinstance(message, Done):
            self._done((peer, message.op))
        elif isinstance(message, Pull):
            self._pull((peer, message.op), message)
        elif isinstance(message, Cancel):
            self._cancel((peer, message.op))
        elif isinstance(message, Open):
            self.streams.receive(peer, message)
        elif isinstance(message, Credit):
            self.streams.credit((peer, message.op), message)
        elif isinstance(message, Bye):
            self._bye(peer, message)
        else:
            self.ignored += 1

    def written(self, ref: Ref, error: str | None) -> None:
        """The engine has ended a WRITE: nothing more of it can land."""
        self._writing.discard(ref)
        if ref in self._abandoned:
            self._abandoned.discard(ref)
            if ref in self._by_peer.get(ref[0], ()):  # cancelled, and still there to be told
                self._say(
                    ref, Done(ref[1]) if error is None else Fail(ref[1], FailCode.ENGINE, error)
                )
            self._finish(ref)
        elif error is None:
            self._say(ref, Done(ref[1]))
        else:
            self._say(ref, Fail(ref[1], FailCode.ENGINE, error))
            self._finish(ref)

    def write_apart(self, ref: Ref) -> Payload | None:
        """(WRITE) What a receiver has claimed is to be written to it in another form than its places.

        Ended by :meth:`written`, like what was begun by a Pull; ``None`` where there is no such claim.
        """
        entry = self._taken(ref)
        if entry is None or ref not in entry.claims or ref in self._pulled:
            return None
        self._writing.add(ref)
        self._pulled.add(ref)
        return entry.payload

    def peer_ended(self, peer: int, *, proven: bool) -> None:
        """The line to a receiver is gone.

        Args:
            proven: whether that proves that the receiver touches this memory no more. Where it does
                not, slots stay quarantined until :meth:`peer_proven`.
        """
        self.streams.peer_ended(peer)
        self._receivers.get(self._stage_of.pop(peer, ""), set()).discard(peer)
        self._lent.pop(peer, None)
        refs = self._by_peer.pop(peer, set())
        self._last_op.pop(peer, None)
        for ref in list(refs):
            if ref in self._parked_key:
                self._unpark(ref)
            elif ref in self._writing:
                self._abandoned.add(ref)
            elif (entry := self.directory.entry_of(ref)) is not None:
                if entry.payload.consumed:  # its get had returned; only the word of it is lost
                    self.directory.taken(ref)
                    self.directory.deliver(ref)
                if proven:
                    self._finish(ref)
                else:
                    entry.payload.quarantine()
                    self._ghosts.setdefault(peer, []).append(ref)
                    self._forfeit(ref, entry)

    def peer_proven(self, peer: int) -> None:
        """Now it is certain that a vanished receiver touches no memory here."""
        for ref in self._ghosts.pop(peer, []):
            if self.directory.entry_of(ref) is not None:
                self._finish(ref)

    def cleanup(self, owner: str) -> int:
        """Drop what ``owner`` has on offer, and tell those who wait for a key of that name."""
        entries = self.directory.owned_by(owner)
        for entry in entries:
            self._unlist(entry, EntryState.DROPPED)
        for key in [key for key in self._parked if key.key == owner]:
            self._refuse_parked(key, FailCode.CANCELLED, "the sender has cleaned up this request")
        return len(entries) + self.streams.cleanup(owner)

    def drop(self, key: TransferKey) -> None:
        """Take what is offered under a key off; a claim on it is left alone."""
        entry = self.directory.get(key)
        if entry is not None:
            self._unlist(entry, EntryState.DROPPED)

    def expire(self, now: float) -> int:
        """Take off what nobody has claimed in time."""
        for entry in self.directory.overdue(now):
            self.recall(entry)
        return len(self.directory.expire(now)) + self.streams.expire(now - self._ttl)

    def close(self, *, peers_read: bool = False) -> int:
        """Drop everything that is on offer; returns how many payloads nobody had fetched.

        Args:
            peers_read: receivers read this side's memory by its address (READ). Then what they were
                offered stays theirs until they say so; what they have not used is recalled.
        """
        entries = list(self.directory.entries())
        for entry in entries:
            self._unlist(entry, EntryState.DROPPED)
        for ref in self.directory.refs():
            pinned = self.directory.entry_of(ref)
            reads = peers_read and pinned is not None and pinned.payload.places
            if ref in self._writing:  # nobody will say that he has it, and then nothing reads it
                self._abandoned.add(ref)
            elif pinned is not None and not reads:
                self._finish(ref)
        return len(entries)

    def _want(self, peer: int, want: Want) -> None:
        if want.op <= self._last_op.get(peer, 0):
            self.ignored += 1
            return
        self._last_op[peer] = want.op
        ref = (peer, want.op)
        key = TransferKey(want.from_stage, want.to_stage, want.key)
        entry = self.directory.get(key)
        if entry is not None and entry.available:
            self._by_peer.setdefault(peer, set()).add(ref)
            self._claim(ref, entry)
        elif self.directory.has_expired(key):
            self._say(ref, Fail(want.op, FailCode.EXPIRED))
        elif entry is not None and entry.ahead is not None:
            # Who was offered it ahead will use it for this very Want; anybody else has to wait.
            self._park(ref, key)
            if not want.park:
                self._probes.add(ref)
            if entry.ahead[0] != peer:
                self.recall(entry)
        elif want.park:
            self._park(ref, key)
        else:
            self._say(ref, Fail(want.op, FailCode.NOT_FOUND))

    def _park(self, ref: Ref, key: TransferKey) -> None:
        self._by_peer.setdefault(ref[0], set()).add(ref)
        self._parked.setdefault(key, {})[ref] = None
        self._parked_key[ref] = key

    def _offer_ahead(self, entry: Entry) -> None:
        """Save the receiver its question, where there is no doubt whom to offer it to."""
        receivers = self._receivers.get(entry.key.to_stage)
        if receivers is None or len(receivers) != 1:
            return
        if entry.payload.places and not self._lends_memory:
            return
        (peer,) = receivers
        lent = self._lent.get(peer, 0)
        if lent >= AHEAD_LIMIT:
            return
        self._lent[peer] = lent + 1
        ref = (peer, next(self._ahead_ids))
        self._by_peer.setdefault(peer, set()).add(ref)
        self.directory.lend(ref, entry)
        self._say(ref, Ahead(*entry.key, entry.payload.offer(ref[1], False)))

    def recall(self, entry: Entry) -> None:
        """Ask for an offer made ahead; the answer is Release, or the word of a get that has it."""
        if entry.ahead is not None and not entry.recalled:
            entry.recalled = True
            self._say(entry.ahead, Recall(entry.ahead[1]))

    def _unlist(self, entry: Entry, state: EntryState) -> None:
        self.directory.unlist(entry, state)
        self.recall(entry)

    def _taken(self, ref: Ref) -> Entry | None:
        """The entry an operation is about. Using an offer made ahead answers those who asked once."""
        if ref[1] < 0 and ref in self._by_peer.get(ref[0], ()):
            entry = self.directory.entry_of(ref)
            if entry is not None and entry.ahead == ref:
                self._lent[ref[0]] -= 1
                self.directory.taken(ref)
                self._answer_probes(entry.key)
        return self.directory.entry_of(ref)

    def _answer_probes(self, key: TransferKey) -> None:
        for ref in [ref for ref in self._parked.get(key, ()) if ref in self._probes]:
            self._unpark(ref)
            self._say(ref, Fail(ref[1], FailCode.NOT_FOUND))

    def _claim(self, ref: Ref, entry: Entry) -> None:
        self.directory.claim(ref, entry)
        self._say(ref, entry.payload.offer(ref[1], entry.consumers > 1))

    def _pull(self, ref: Ref, pull: Pull) -> None:
        entry = self._taken(ref)
        if not self._lends_memory and not pull.places:
            self._confirm(ref, entry)
            return
        if entry is None or ref not in entry.claims or ref in self._pulled:
            self.ignored += 1
            return
        want, got = [p.nbytes for p in entry.payload.places], [p.nbytes for p in pull.places]
        if want != got:
            text = f"the landing slots have {got} bytes, the payload has {want}"
            self._say(ref, Fail(ref[1], FailCode.REFUSED, text))
            self._finish(ref)
            return
        self._writing.add(ref)
        self._pulled.add(ref)
        self.writes.append(Write(ref, entry.payload, pull.places))

    def _confirm(self, ref: Ref, entry: Entry | None) -> None:
        """(READ) Somebody has read what he claims; his line stands, so it was kept for him."""
        if entry is None or ref not in entry.claims:
            self._say(ref, Fail(ref[1], FailCode.REFUSED, "what was read was claimed by nobody"))
        else:
            self._say(ref, Done(ref[1]))

    def _done(self, ref: Ref) -> None:
        if self._taken(ref) is None or ref in self._writing:
            self.ignored += 1
        else:
            self.directory.deliver(ref)

    def _release(self, ref: Ref, consumed: bool) -> None:
        if self.directory.entry_of(ref) is None:
            self.ignored += not self.streams.left(ref, done=consumed)
        elif ref in self._writing:  # only the engine's end frees what it writes from
            self._abandoned.add(ref)
        else:
            if consumed:
                self._taken(ref)
                self.directory.deliver(ref)
            self._finish(ref)

    def _cancel(self, ref: Ref) -> None:
        if ref in self._parked_key:
            self._unpark(ref)
        elif self.directory.entry_of(ref) is None:
            self.ignored += not self.streams.left(ref, done=False)
        elif ref in self._writing:
            self._abandoned.add(ref)
        else:
            self._finish(ref)

    def _bye(self, peer: int, bye: Bye) -> None:
        if bye.held is None:
            return
        held = set(bye.held)
        for ref in list(self._by_peer.get(peer, ())):
            if ref[1] not in held:
                self._cancel(ref)
            elif self._taken(ref) is not None:
                self.directory.deliver(ref)

    def _finish(self, ref: Ref) -> None:
        self._by_peer.get(ref[0], set()).discard(ref)
        self._pulled.discard(ref)
        entry = self.directory.entry_of(ref)
        if entry is not None and entry.ahead == ref and ref[0] in self._lent:
            self._lent[ref[0]] -= 1
        entry = self.directory.finish(ref)
        if entry.overdue and entry.listed and not entry.touched:
            self.directory.bury(entry)
            for parked in list(self._parked.get(entry.key, ())):
                self._unpark(parked)
                self._say(parked, Fail(parked[1], FailCode.EXPIRED))
        if entry.key in self._parked:
            if entry.available:
                self._serve(entry)
            if not entry.listed:
                self._answer_probes(entry.key)

    def _forfeit(self, ref: Ref, entry: Entry) -> None:
        """An undelivered payload is on offer again although its last claimant may still read it."""
        self.directory.taken(ref)
        if ref in entry.claims:
            entry.claims.discard(ref)
            entry.readers.add(ref)
            if entry.listed and not entry.claims:
                entry.state = EntryState.OFFERED
            if entry.available and entry.key in self._parked:
                self._serve(entry)

    def _serve(self, entry: Entry) -> None:
        waiting = self._parked[entry.key]
        while waiting and entry.available:
            ref = next(iter(waiting))
            del waiting[ref]
            del self._parked_key[ref]
            self._probes.discard(ref)
            self._claim(ref, entry)
        if not waiting:
            del self._parked[entry.key]

    def _unpark(self, ref: Ref) -> None:
        self._by_peer.get(ref[0], set()).discard(ref)
        self._probes.discard(ref)
        key = self._parked_key.pop(ref)
        waiting = self._parked[key]
        del waiting[ref]
        if not waiting:
            del self._parked[key]

    def _refuse_parked(self, key: TransferKey, code: FailCode, text: str) -> None:
        waiting: Iterable[Ref] = list(self._parked[key])
        for ref in waiting:
            self._unpark(ref)
            self._say(ref, Fail(ref[1], code, text))

    def _say(self, ref: Ref, message: Message) -> None:
        self.outbox.append((ref[0], message))
