"""A consumer's side of all transfers of KV caches, without I/O.

In: what is wanted, words of producers, ends of reads and of copies. Out: words, reads and copies to begin, ends.
Never: reaches a clock, a line, an engine; tells a block to be usable, or free, before no byte can land in it.

A share is one producer rank's part of what is wanted::

    PARKED ──line──> ASKED ──Begun──> BEGUN ──every layer in place──> DONE
      └────────────────┴────────────────┴──cancel, loss, fault──> FAILED (doubtful until nothing can land)
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import EngineFault, OmniAsyncError, PeerLost, ProtocolError, UsageError
from .reasons import error_of, named, unnamed
from .words import ALL, AnyWord, Ask, Begun, Decline, Drop, Ended, Landed, Mode, Ready, Reason, Took


class Step(enum.IntEnum):
    """It only grows, but that a share whose producer was lost before it began is parked again."""

    PARKED = 0
    ASKED = 1
    BEGUN = 2
    DONE = 3
    FAILED = 4


@dataclass(eq=False, slots=True)
class TakenShare:
    """What one producer rank is to bring."""

    address: str
    """Of the producer."""
    ticket: int
    request_id: str
    blocks: list[int]
    mode: Mode
    staged: bool
    step: Step = Step.PARKED
    incarnation: str = ""
    """Of the producer that was asked."""
    tokens: int = ALL
    holds: int = 0
    """Tokens of its producer's cache, told or because its blocks are full."""
    plan: Any = None
    """What is to be moved, as whoever moves it knows it."""
    local: int = 0
    """Reads and copies under way here."""
    arrived: set[int] = field(default_factory=set)
    """(staged) Layers that lie in landing slots, or did."""
    landed: set[int] = field(default_factory=set)
    error: OmniAsyncError | None = None
    doubtful: bool = False
    """Something may still land in its blocks, and no word of an end has come."""
    on_change: Callable[[], None] = lambda: None

    @property
    def free(self) -> bool:
        """Nothing can land in its blocks any more."""
        return self.step >= Step.DONE and not self.doubtful and not self.local


class Taking:
    """All transfers to one consumer.

    Args:
        layers: of the cache.
        written_to: whether producers write here (WRITE), or bytes are read from here.
        plan: works out what is to be moved, and sets ``plan`` and ``holds``; raises UsageError or ProtocolError.
        describe: a producer at an address, for people.
    """

    def __init__(
        self,
        layers: int,
        *,
        written_to: bool,
        plan: Callable[[TakenShare, Begun], None],
        describe: Callable[[str], str],
    ) -> None:
        self._layers = layers
        self._written_to = written_to
        self._plan = plan
        self._describe = describe
        self._tickets = itertools.count(1)
        self.shares: dict[int, TakenShare] = {}
        self._lines: dict[str, str] = {}
        """Address → incarnation of the producer that is there."""
        self.words: list[tuple[str, AnyWord]] = []
        self.begun: list[TakenShare] = []
        """(staged) Shares that want landing slots."""
        self.reads: list[tuple[TakenShare, list[int]]] = []
        self.arrived: list[tuple[TakenShare, list[int], list[int]]] = []
        """(staged) Layers that lie in landing slots and are to be copied: share, layers, slots."""
        self.stirred: list[TakenShare] = []
        """Shares about which there is something to be known."""
        self.doubtful: list[TakenShare] = []
        """Shares whose producer can tell of no end: only the memory can be taken away from it."""

    # --- the caller -------------------------------------------------------------------------------

    def want(
        self, address: str, request_id: str, blocks: list[int], mode: Mode, *, staged: bool
    ) -> TakenShare:
        """Ask a producer, now or when it is there."""
        share = TakenShare(address, next(self._tickets), request_id, blocks, mode, staged)
        self.shares[share.ticket] = share
        if address in self._lines:
            self._ask(share)
        return share

    def cancel(self, share: TakenShare, error: OmniAsyncError) -> None:
        """It is not wanted any more; its producer is told at once."""
        if share.step >= Step.DONE:
            return
        told = share.step is not Step.PARKED
        lands = self._written_to and len(share.arrived) < self._layers
        self._fail(share, error, doubtful=told and lands)
        if told:
            if isinstance(error, ProtocolError):  # its producer has to know why, not only that
                refusal = Decline(share.request_id, str(error), Reason.REFUSED)
                self.words.append((share.address, refusal))
            self.words.append((share.address, Drop(share.ticket, unnamed(share.request_id, error))))

    def free(self, share: TakenShare) -> None:
        """The memory was taken away from whoever might have written: nothing lands any more."""
        if share.doubtful:
            share.doubtful = False
            self._stir(share)

    # --- producers --------------------------------------------------------------------------------

    def met(self, address: str, incarnation: str) -> None:
        """A producer is there, and its layout fits."""
        self._lines[address] = incarnation
        for share in list(self.shares.values()):
            if share.address != address:
                continue
            if share.step is Step.PARKED:
                self._ask(share)
            elif share.doubtful and share.incarnation == incarnation:
                # It was only the line: the same process can tell when its last write has ended.
                self.words.append((address, Drop(share.ticket)))

    def refused(self, address: str, error: OmniAsyncError) -> None:
        """The producer there can never serve this side; it is told why, for it may wait to be asked."""
        self._lines.pop(address, None)
        for share in list(self.shares.values()):
            if share.address == address and share.step is Step.PARKED:
                self._fail(share, error, doubtful=False)
                self.words.append((address, Decline(share.request_id, str(error), Reason.REFUSED)))
            elif share.address == address:
                self.cancel(share, error)

    def lost(self, address: str, *, proven: bool) -> None:
        """The line has ended; ``proven``: and with it whatever that producer could write."""
        who = self._lines.pop(address, None)
        for share in list(self.shares.values()):
            if share.address != address or share.step in (Step.PARKED, Step.DONE):
                continue
            if share.step is Step.FAILED:
                if share.incarnation != who:
                    continue  # what is proven of a successor says nothing of whom it was asked
                if share.doubtful and proven:
                    self.free(share)
                elif share.doubtful:
                    self.doubtful.append(share)
                continue
            if len(share.arrived) == self._layers:
                continue  # what is left to be done is done here
            if share.step is Step.ASKED and (proven or not self._written_to):
                share.step = Step.PARKED  # a successor may have it
                continue
            text = (
                f"request {share.request_id!r}: the producer {self._describe(address)} was lost with "
                f"{len(share.landed)} of {self._layers} layers in place; nothing of it may be used"
            )
            error = PeerLost(text, key=share.request_id, peer=address)
            self._fail(share, error, doubtful=self._written_to and not proven)
            if share.doubtful:
                self.doubtful.append(share)

    def heard(self, address: str, word: AnyWord) -> None:
        """A producer's word.

        Raises:
            ProtocolError: it makes no sense.
        """
        if isinstance(word, (Begun, Ready, Landed, Ended)):
            share = self.shares.get(word.ticket)
            if share is None or share.address != address:
                return  # it ended here a moment ago
            if share.incarnation != self._lines.get(address):
                return  # a successor has nothing to say of it
            if isinstance(word, Ended):
                self._ended(share, word)
            elif share.step in (Step.ASKED, Step.BEGUN):
                self._progress(share, word)
        else:
            raise ProtocolError(f"a producer does not say {type(word).__name__}", peer=address)

    # --- work that is done here -------------------------------------------------------------------

    def read(self, share: TakenShare, layers: list[int], problem: str | None) -> None:
        """A read has ended: no byte of it is under way any more."""
        share.local -= 1
        if share.step is Step.BEGUN:
            if problem is None:
                self.words.append((share.address, Took(share.ticket, layers)))
            else:
                text = f"layers {layers} of request {share.request_id!r} were not read: {problem}"
                self._give_up(share, text)
        self._stir(share)

    def copied(self, share: TakenShare, layers: list[int], problem: str | None) -> None:
        """(staged) Layers were copied from their landing slots to their blocks, or will not be."""
        share.local -= len(layers)
        if share.step is Step.BEGUN:
            if problem is None:
                self._in_place(share, layers)
            else:
                text = f"layers {layers} of request {share.request_id!r} were not copied: {problem}"
                self._give_up(share, text)
        self._stir(share)

    # --- within -----------------------------------------------------------------------------------

    def _ask(self, share: TakenShare) -> None:
        share.step = Step.ASKED
        share.incarnation = self._lines[share.address]
        self.words.append(
            (
                share.address,
                Ask(share.ticket, share.request_id, share.blocks, share.mode, share.staged),
            )
        )

    def _progress(self, share: TakenShare, word: Begun | Ready | Landed) -> None:
        if isinstance(word, Begun):
            try:
                share.staged = word.staged
                self._plan(share, word)
            except (UsageError, ProtocolError) as error:
                self.cancel(share, error)
                return
            share.step, share.tokens = Step.BEGUN, word.tokens
            if word.staged:
                self.begun.append(share)
            self._stir(share)
            return
        if share.step is not Step.BEGUN or not all(0 <= at < self._layers for at in word.layers):
            raise ProtocolError(
                f"layers {word.layers} of request {share.request_id!r} came before it began, or are none",
                peer=share.address,
            )
        if isinstance(word, Ready):
            share.local += 1
            self.reads.append((share, word.layers))
        elif share.staged:
            share.local += len(word.layers)
            share.arrived.update(word.layers)
            self.arrived.append((share, word.layers, word.slots))
        else:
            self._in_place(share, word.layers)

    def _in_place(self, share: TakenShare, layers: list[int]) -> None:
        share.landed.update(layers)
        if len(share.landed) == self._layers:
            share.step = Step.DONE
        self._stir(share)

    def _ended(self, share: TakenShare, word: Ended) -> None:
        if share.step < Step.DONE:
            text = named(share.request_id, word.text)
            peer = self._describe(share.address)
            error = error_of(word.reason, text, share.request_id, peer)
            self._fail(share, error, doubtful=self._written_to and word.under_way)
        if not word.under_way:
            share.doubtful = False
        self._stir(share)

    def _give_up(self, share: TakenShare, text: str) -> None:
        self.cancel(share, EngineFault(text, key=share.request_id, peer=share.address))

    def _fail(self, share: TakenShare, error: OmniAsyncError, *, doubtful: bool) -> None:
        share.step, share.error, share.doubtful = Step.FAILED, error, doubtful
        self._stir(share)

    def _stir(self, share: TakenShare) -> None:
        self.stirred.append(share)
        if share.free:
            self.shares.pop(share.ticket, None)
