"""The receiver's half of the conversation with one sender endpoint, without I/O.

In: what callers want, words of the sender, ends of the line. Out: words to send, and events for callers.
Never: reaches a clock, a channel, an engine; reads a byte of a payload.

::

    PARKED ──Offer──> OFFERED ──pull──> PULLED ──Done──> LANDED
       │                 │                 │                │
       │                 ├──────────── consume ─────────────┤──> HOLDING ──release──> (gone)
       └──── cancel ─────┴──> (gone)       └── cancel ──> CANCELLED ──Done/Fail──> (gone)
"""

from __future__ import annotations

import enum
import itertools

from ..model import TransferKey
from .messages import (
    Bye,
    Cancel,
    Done,
    Fail,
    Message,
    Offer,
    PlaceWord,
    Pull,
    Release,
    Want,
)


class Phase(enum.Enum):
    PARKED = "waiting for an offer"
    OFFERED = "offered, being taken"
    PULLED = "waiting for the sender's write"
    LANDED = "written, being taken"
    HOLDING = "delivered, memory still read"
    CANCELLED = "cancelled, the sender's write has not ended"


class Operation:
    """One get."""

    __slots__ = ("id", "key", "park", "phase", "sent")

    def __init__(self, op: int, key: TransferKey, park: bool) -> None:
        self.id = op
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
        self.events: list[Event] = []
        self.landed_late: list[int] = []
        """Cancelled operations whose write has ended: their landing slots are free again."""
        self.ignored = 0
        self._ops: dict[int, Operation] = {}
        self._connected = False
        self._lost_at = 0
        """The newest operation when the line was lost."""

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def parked(self) -> int:
        return sum(op.phase is Phase.PARKED for op in self._ops.values())

    @property
    def held(self) -> list[int]:
        """Operations that were delivered and whose memory is still read."""
        return [op.id for op in self._ops.values() if op.phase is Phase.HOLDING]

    def phase(self, op: int) -> Phase | None:
        operation = self._ops.get(op)
        return None if operation is None else operation.phase

    def operations(self) -> list[Operation]:
        return list(self._ops.values())

    def want(self, key: TransferKey, *, park: bool = True) -> int:
        """Begin a get. Its id is new in this process, so no late word can mean another one."""
        operation = Operation(next(_operation_ids), key, park)
        self._ops[operation.id] = operation
        if self._connected:
            self._ask(operation)
        return operation.id

    def connected(self) -> None:
        """A line to (a new incarnation of) the sender stands: ask for all that is parked."""
        self._connected = True
        for operation in self._ops.values():
            if operation.phase is Phase.PARKED:
                self._ask(operation)

    def lost(self) -> None:
        """The line is gone. Parked operations wait for a successor, claimed ones have failed."""
        self._connected = False
        self._lost_at = next(_operation_ids)
        for operation in list(self._ops.values()):
            if operation.phase is Phase.PARKED:
                operation.sent = False
                if not operation.park:
                    self._end(operation, None)
            elif operation.phase in (Phase.OFFERED, Phase.PULLED, Phase.LANDED):
                self._end(operation, None)
            elif operation.phase is Phase.HOLDING:
                del self._ops[operation.id]  # what is held keeps the memory itself, not this table

    def cancelled_writes(self) -> list[int]:
        """Cancelled operations whose write may still land."""
        return [op.id for op in self._ops.values() if op.phase is Phase.CANCELLED]

    def writes_ended(self) -> None:
        """It is certain that the sender that was lost last, and those before it, write no more."""
        for op in [op for op in self.cancelled_writes() if op <= self._lost_at]:
            del self._ops[op]
            self.landed_late.append(op)

    def receive(self, message: Message) -> None:
        """A word of the sender. What does not fit the operation's phase is ignored and counted."""
        if isinstance(message, Offer):
            self._offer(message)
        elif isinstance(message, Done):
            self._done(message)
        elif isinstance(message, Fail):
            self._fail(message)
        elif not isinstance(message, Bye):
            self.ignored += 1

    def pull(self, op: int, places: list[PlaceWord]) -> None:
        """(WRITE) Landing slots are ready."""
        operation = self._ops[op]
        if operation.phase is not Phase.OFFERED:
            raise RuntimeError(f"pull of operation {op} in phase {operation.phase.name}")
        operation.phase = Phase.PULLED
        self.outbox.append(Pull(op, places))

    def consume(self, op: int, *, holding: bool) -> bool:
        """The get returns its value now. ``holding``: the sender's memory is still read.

        Returns False when the sender was lost a moment before: the payload is not ours any more.
        """
        operation = self._ops.get(op)
        if operation is None or operation.phase not in (Phase.OFFERED, Phase.LANDED):
            return False
        if holding:
            operation.phase = Phase.HOLDING
            self.outbox.append(Done(op))
        else:
            del self._ops[op]
            self.outbox.append(Release(op, True))
        return True

    def release(self, op: int) -> None:
        """The last view of a held payload is gone."""
        operation = self._ops.get(op)
        if operation is not None and operation.phase is Phase.HOLDING:
            del self._ops[op]
            self.outbox.append(Release(op, True))

    def cancel(self, op: int) -> bool:
        """The caller gave up. Returns whether its landing slot must be kept until the write's end."""
        operation = self._ops.get(op)
        if operation is None:
            return False
        if operation.phase is Phase.PARKED:
            if operation.sent:
                self.outbox.append(Cancel(op))
        elif operation.phase in (Phase.OFFERED, Phase.LANDED):
            self.outbox.append(Release(op, False))
        elif operation.phase is Phase.PULLED:
            operation.phase = Phase.CANCELLED
            self.outbox.append(Cancel(op))
            return True
        else:
            return operation.phase is Phase.CANCELLED
        del self._ops[op]
        return False

    def _ask(self, operation: Operation) -> None:
        operation.sent = True
        key = operation.key
        self.outbox.append(
            Want(operation.id, key.from_stage, key.to_stage, key.key, operation.park)
        )

    def _offer(self, offer: Offer) -> None:
        operation = self._ops.get(offer.op)
        if operation is None:  # its Cancel crossed the offer, or the Want came twice
            self.ignored += 1
            self.outbox.append(Release(offer.op, False))
        elif operation.phase is Phase.PARKED:
            operation.phase = Phase.OFFERED
            self.events.append((offer.op, offer))
        else:
            self.ignored += 1

    def _done(self, done: Done) -> None:
        operation = self._ops.get(done.op)
        if operation is not None and operation.phase is Phase.PULLED:
            operation.phase = Phase.LANDED
            self.events.append((done.op, done))
        elif operation is not None and operation.phase is Phase.CANCELLED:
            del self._ops[done.op]
            self.landed_late.append(done.op)
        else:
            self.ignored += 1

    def _fail(self, fail: Fail) -> None:
        operation = self._ops.get(fail.op)
        if operation is None:
            self.ignored += 1
        elif operation.phase is Phase.CANCELLED:
            del self._ops[fail.op]
            self.landed_late.append(fail.op)
        elif operation.phase in (Phase.PARKED, Phase.PULLED):
            self._end(operation, fail)
        else:
            self.ignored += 1

    def _end(self, operation: Operation, word: Fail | None) -> None:
        """Failed: tell the caller. A write that was under way may still land after a loss."""
        if operation.phase is Phase.PULLED and word is None:
            operation.phase = Phase.CANCELLED
        else:
            del self._ops[operation.id]
        self.events.append((operation.id, word))
