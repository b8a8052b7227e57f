"""The receiver's half of the conversation with one sender endpoint, without I/O.

In: what callers want, words of the sender, ends of the line. Out: words to send, and events for callers.
Never: reaches a clock, a channel, an engine; reads a byte of a payload.

::

    PARKED ──Offer──> OFFERED ──pull──> PULLED ──Done──> LANDED
       │                 │                 │                │
       │                 ├──────────── consume ─────────────┤──> HOLDING ──release──> (gone)
       └──── cancel ─────┴──> (gone)       └── cancel ──> CANCELLED ──Done/Fail──> (gone)

Over a line whose end proves nothing, what was READ is confirmed before it is believed:
OFFERED ──confirm──> CONFIRMING ──Done──> LANDED, or ──cancel, Fail──> (gone).
"""

from __future__ import annotations

import enum
import itertools

from ..model import TransferKey
from .messages import (
    Ahead,
    Bye,
    Cancel,
    Done,
    Fail,
    FailCode,
    Item,
    Message,
    Offer,
    PlaceWord,
    Pull,
    Recall,
    Release,
    Want,
)
from .stream_readers import Readers


class Phase(enum.Enum):
    PARKED = "waiting for an offer"
    OFFERED = "offered, being taken"
    PULLED = "waiting for the sender's write"
    CONFIRMING = "read, asking the sender whether it was his to give all the time"
    LANDED = "written, being taken"
    HOLDING = "delivered, memory still read"
    CANCELLED = "cancelled, the sender's write has not ended"


class Operation:
    """One get."""

    __slots__ = ("id", "key", "park", "phase", "sent", "wire")

    def __init__(self, op: int, key: TransferKey, park: bool) -> None:
        self.id = op
        self.wire = op
        """What the sender calls it: the same, unless its payload was offered ahead."""
        self.key = key
        self.park = park
        self.phase = Phase.PARKED
        self.sent = False


Event = tuple[int, "Offer | Done | Fail | None"]
"""(operation, word); ``None``: the sender was lost after it had offered."""

_operation_ids = itertools.count(1)


class Receiver:
    """All operations of this process at one sender endpoint."""

    def __init__(self) -> None:
        self.outbox: list[Message] = []
        self.streams = Readers(self._tell, _operation_ids.__next__)
        self.events: list[Event] = []
        self.landed_late: list[int] = []
        """Cancelled operations whose write has ended: their landing slots are free again."""
        self.torn: list[int] = []
        """Operations whose write has failed in the sender's engine. What it had sent by then may still
        be on its way: that end is no proof."""
        self.ignored = 0
        self._ops: dict[int, Operation] = {}
        self._by_wire: dict[int, Operation] = {}
        self._wanted: dict[TransferKey, dict[int, Operation]] = {}
        """By key: what waits for an offer, the oldest first."""
        self._ahead: dict[TransferKey, Offer] = {}
        """Offered before anybody here asked."""
        self._newest_ahead = 0
        self._recalled: set[int] = set()
        """Recalls that overtook their offers."""
        self.urgent = False
        """Something in the outbox is waited for; the rest may travel with what comes next."""
        self._unasked: dict[int, Operation] = {}
        """Parked operations whose Want is held back, since their payloads come unasked."""
        self._unasked_pays = False
        """The last payload came ahead of its Want."""
        self._connected = False
        self._lost_at = 0
        """The newest operation when the line was lost."""

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def parked(self) -> int:
        """Operations that wait for an offer."""
        return sum(map(len, self._wanted.values()))

    @property
    def held(self) -> list[int]:
        """Delivered operations whose memory is still read, by the ids the sender knows."""
        return [op.wire for op in self._ops.values() if op.phase is Phase.HOLDING]

    def phase(self, op: int) -> Phase | None:
        operation = self._ops.get(op)
        return None if operation is None else operation.phase

    def operations(self) -> list[Operation]:
        return list(self._ops.values())

    def want(self, key: TransferKey, *, park: bool = True) -> int:
        """Begin a get. Its id is new in this process, so no late word can mean another one."""
        operation = Operation(next(_operation_ids), key, park)
        self._ops[operation.id] = operation
        offer = self._ahead.pop(key, None)
        if offer is not None:
            self._unasked_pays = True
            operation.wire = offer.op
            operation.phase = Phase.OFFERED
            self._by_wire[offer.op] = operation
            self.events.append((operation.id, offer))
            return operation.id
        self._by_wire[operation.id] = operation
        self._wanted.setdefault(key, {})[operation.id] = operation
        if self._connected:
            if park and self._unasked_pays:
                self._unasked[operation.id] = operation
            else:
                self._ask_held_back()
                self._ask(operation)
        return operation.id

    def offered(self, op: int) -> Offer | None:
        """What :meth:`want` has just found on offer; its event is taken."""
        events = self.events
        if events and events[-1][0] == op:
            offer = events.pop()[1]
            assert isinstance(offer, Offer)
            return offer
        return None

    @property
    def pending(self) -> bool:
        """Whether there is anything to send, now or soon."""
        return bool(self.outbox or self._unasked)

    def words(self) -> list[Message]:
        """Everything to be sent; the caller sends it."""
        self._ask_held_back()
        self.urgent = False
        words, self.outbox = self.outbox, []
        return words

    def connected(self) -> None:
        """A line to (a new incarnation of) the sender stands: ask for all that is parked."""
        self._connected = True
        for operation in self._ops.values():
            if operation.phase is Phase.PARKED:
                self._ask(operation)
        self.streams.connected()

    def lost(self) -> None:
        """The line is gone. Parked operations wait for a successor, claimed ones have failed."""
        self._connected = False
        self._lost_at = next(_operation_ids)
        self._unasked.clear()
        self._unasked_pays = False
        self._ahead.clear()
        self._recalled.clear()
        self._newest_ahead = 0
        self.streams.lost()
        for operation in list(self._ops.values()):
            if operation.phase is Phase.PARKED:
                operation.sent = False
                if not operation.park:
                    self._end(operation, None)
            elif operation.phase in (
                Phase.OFFERED,
                Phase.PULLED,
                Phase.CONFIRMING,
                Phase.LANDED,
            ):
                self._end(operation, None)
            elif operation.phase is Phase.HOLDING:
                self._forget(operation)  # what is held keeps the memory itself, not this table

    def cancelled_writes(self) -> list[int]:
        """Cancelled operations whose write may still land."""
        return [op.id for op in self._ops.values() if op.phase is Phase.CANCELLED]

    def writes_ended(self) -> None:
        """It is certain that the sender that was lost last, and those before it, write no more."""
        for op in [op for op in self.cancelled_writes() if op <= self._lost_at]:
            self._forget(self._ops[op])
            self.landed_late.append(op)

    def receive(self, message: Message) -> None:
        """A word of the sender. What does not fit the operation's phase is ignored and counted."""
        if isinstance(message, Item):  # first: a stream's words are the most frequent ones
            self.streams.receive(message)
        elif isinstance(message, Ahead):
            self._offered_ahead(message)
        elif isinstance(message, Offer):
            self._offer(message)
        elif isinstance(message, Done):
            self._done(message)
        elif isinstance(message, Fail):
            self._fail(message)
        elif isinstance(message, Recall):
            self._recall(message.op)
        elif not isinstance(message, Bye):
            self.ignored += 1

    def pull(self, op: int, places: list[PlaceWord]) -> None:
        """(WRITE) Landing slots are ready."""
        operation = self._ops[op]
        if operation.phase is not Phase.OFFERED:
            raise RuntimeError(f"pull of operation {op} in phase {operation.phase.name}")
        operation.phase = Phase.PULLED
        self.urgent = True
        self.outbox.append(Pull(operation.wire, places))

    def confirm(self, op: int) -> bool:
        """(READ) Everything was read: ask whether it lay there all the time.

        A sender that has given a receiver up frees what it was reading, and so never answers it. Returns
        False when the sender was lost a moment before.
        """
        operation = self._ops.get(op)
        if operation is None or operation.phase is not Phase.OFFERED:
            return False
        operation.phase = Phase.CONFIRMING
        self.urgent = True
        self.outbox.append(Pull(operation.wire, []))
        return True

    def consume(self, op: int, *, holding: bool) -> bool:
        """The get returns its value now. ``holding``: the sender's memory is still read.

        Returns False when the sender was lost a moment before: the payload is not ours any more.
        """
        operation = self._ops.get(op)
        if operation is None or operation.phase not in (Phase.OFFERED, Phase.LANDED):
            return False
        if holding:
            operation.phase = Phase.HOLDING
            self.outbox.append(Done(operation.wire))
        else:
            self._forget(operation)
            self.outbox.append(Release(operation.wire, True))
        return True

    def release(self, op: int) -> None:
        """The last view of a held payload is gone."""
        operation = self._ops.get(op)
        if operation is not None and operation.phase is Phase.HOLDING:
            self._forget(operation)
            outbox = self.outbox
            if outbox and isinstance(outbox[-1], Done) and outbox[-1].op == operation.wire:
                outbox.pop()  # both are true, and one word says it
            outbox.append(Release(operation.wire, True))

    def cancel(self, op: int) -> bool:
        """The caller gave up. Returns whether its landing slot must be kept until the write's end."""
        operation = self._ops.get(op)
        if operation is None:
            return False
        self.urgent = True
        if operation.phase is Phase.PARKED:
            if operation.sent:
                self.outbox.append(Cancel(operation.wire))
        elif operation.phase in (Phase.OFFERED, Phase.CONFIRMING, Phase.LANDED):
            self.outbox.append(Release(operation.wire, False))
        elif operation.phase is Phase.PULLED:
            operation.phase = Phase.CANCELLED
            self.outbox.append(Cancel(operation.wire))
            return True
        else:
            return operation.phase is Phase.CANCELLED
        self._forget(operation)
        return False

    def _tell(self, word: Message, urgent: bool) -> None:
        self.outbox.append(word)
        self.urgent |= urgent

    def _ask_held_back(self) -> None:
        """Before any newer Want: the sender takes one with an older id for one that came twice."""
        for operation in self._unasked.values():
            self._ask(operation)
        self._unasked.clear()

    def _ask(self, operation: Operation) -> None:
        operation.sent = True
        self.urgent = True
        key = operation.key
        self.outbox.append(
            Want(operation.id, key.from_stage, key.to_stage, key.key, operation.park)
        )

    def _offer(self, offer: Offer) -> None:
        operation = self._by_wire.get(offer.op)
        if operation is None:  # its Cancel crossed the offer, or the Want came twice
            self.ignored += 1
            self._refuse(offer.op)
        elif operation.phase is Phase.PARKED:
            self._unasked_pays = False
            self._offered(operation, offer)
        else:
            self.ignored += 1

    def _offered_ahead(self, ahead: Ahead) -> None:
        """Keep it for the next get, or answer one that waits already."""
        offer = ahead.offer
        wire = offer.op
        if wire in self._recalled:
            self._recalled.discard(wire)
            self._newest_ahead = min(self._newest_ahead, wire)  # answered, should it come twice
            self._refuse(wire)
            return
        if wire >= self._newest_ahead:  # it came twice: the first one is kept, used or answered
            self.ignored += 1
            return
        self._newest_ahead = wire
        key = TransferKey(ahead.from_stage, ahead.to_stage, ahead.key)
        waiting = self._wanted.get(key)
        if waiting:
            operation = next(iter(waiting.values()))
            if operation.sent:
                self.outbox.append(Cancel(operation.wire))
            self._use_ahead(operation, offer)
            return
        older = self._ahead.get(key)
        if older is not None:
            self._refuse(older.op)
        self._ahead[key] = offer

    def _recall(self, wire: int) -> None:
        for key, offer in self._ahead.items():
            if offer.op == wire:
                del self._ahead[key]
                self._refuse(wire)
                return
        if wire < self._newest_ahead:
            self._recalled.add(wire)

    def _refuse(self, wire: int) -> None:
        self.urgent = True
        self.outbox.append(Release(wire, False))

    def _use_ahead(self, operation: Operation, offer: Offer) -> None:
        self._unasked_pays = True
        self._by_wire.pop(operation.wire, None)
        operation.wire = offer.op
        self._by_wire[offer.op] = operation
        self._offered(operation, offer)

    def _offered(self, operation: Operation, offer: Offer) -> None:
        self._unwant(operation)
        operation.phase = Phase.OFFERED
        self.events.append((operation.id, offer))

    def _done(self, done: Done) -> None:
        operation = self._by_wire.get(done.op)
        if operation is not None and operation.phase in (Phase.PULLED, Phase.CONFIRMING):
            operation.phase = Phase.LANDED
            self.events.append((operation.id, done))
        elif operation is not None and operation.phase is Phase.CANCELLED:
            self._forget(operation)
            self.landed_late.append(operation.id)
        else:
            self.ignored += 1

    def _fail(self, fail: Fail) -> None:
        operation = self._by_wire.get(fail.op)
        if operation is None:
            self.ignored += not self.streams.receive(fail)
            return
        broken = fail.code is FailCode.ENGINE
        if broken and operation.phase in (Phase.PULLED, Phase.CANCELLED):
            self.torn.append(operation.id)
        if operation.phase is Phase.CANCELLED:
            self._forget(operation)
            if not broken:
                self.landed_late.append(operation.id)
        elif operation.phase in (Phase.PARKED, Phase.PULLED, Phase.CONFIRMING):
            self._end(operation, fail)
        else:
            self.ignored += 1

    def _end(self, operation: Operation, word: Fail | None) -> None:
        """Failed: tell the caller. A write that was under way may still land after a loss."""
        if operation.phase is Phase.PULLED and word is None:
            operation.phase = Phase.CANCELLED
        else:
            self._forget(operation)
        self.events.append((operation.id, word))

    def _forget(self, operation: Operation) -> None:
        if operation.phase is Phase.PARKED:
            self._unwant(operation)
        self._ops.pop(operation.id, None)
        self._by_wire.pop(operation.wire, None)

    def _unwant(self, operation: Operation) -> None:
        self._unasked.pop(operation.id, None)
        waiting = self._wanted.get(operation.key)
        if waiting is not None and waiting.pop(operation.id, None) is not None and not waiting:
            del self._wanted[operation.key]
