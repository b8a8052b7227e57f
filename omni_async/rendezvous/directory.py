"""What a sender has on offer: its one table.

In: payloads, claims, the time as an argument. Out: who may have what, and payloads nobody needs.
Never: reaches a clock, a channel or an engine; frees memory that a claim or a reader may touch.

::

    OFFERED ──claim──> CLAIMED ──last delivery──> CONSUMED
       ^  │               │
       │  ├── time ──> EXPIRED
       │  └── cleanup, replaced, close ──> DROPPED
       └──── given back ──┘
"""

from __future__ import annotations

import enum
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator

from ..model import TransferKey
from .payload import Payload

TOMBSTONES = 4096
"""Expired keys that are remembered, so that a late get is told the truth. Oldest go first."""

Ref = tuple[int, int]
"""An operation: the peer's number here, and the peer's own operation id."""


class KeyClaimed(Exception):
    """The key cannot be replaced: a receiver has a claim on it, or has had a delivery of it."""


class EntryState(enum.Enum):
    OFFERED = enum.auto()
    CLAIMED = enum.auto()
    CONSUMED = enum.auto()
    EXPIRED = enum.auto()
    DROPPED = enum.auto()


class Entry:
    """One payload, and everybody who has to do with it."""

    __slots__ = (
        "ahead",
        "claims",
        "consumers",
        "delivered",
        "expires",
        "key",
        "overdue",
        "owner",
        "payload",
        "readers",
        "recalled",
        "state",
    )

    def __init__(
        self, key: TransferKey, payload: Payload, owner: str, consumers: int, expires: float
    ) -> None:
        self.key = key
        self.payload = payload
        self.owner = owner
        self.consumers = consumers
        self.expires = expires
        self.delivered = 0
        self.ahead: Ref | None = None
        """The receiver that was offered it before it asked. That is no claim: it can be recalled."""
        self.recalled = False
        """The offer made ahead was asked back."""
        self.overdue = False
        """Its time was over while it was offered ahead: it expires when it is given back."""
        self.claims: set[Ref] = set()
        """Receivers that may still give it back."""
        self.readers: set[Ref] = set()
        """Receivers that have it and still read the sender's memory."""
        self.state = EntryState.OFFERED

    @property
    def listed(self) -> bool:
        return self.state is EntryState.OFFERED or self.state is EntryState.CLAIMED

    @property
    def available(self) -> bool:
        return (
            self.listed
            and self.ahead is None
            and self.delivered + len(self.claims) < self.consumers
        )

    @property
    def touched(self) -> bool:
        """Whether somebody has it or has had it."""
        return bool(self.delivered or self.claims)


class Directory:
    """Entries by key, claims by operation; ``freed`` collects payloads to drop."""

    def __init__(self) -> None:
        self._entries: dict[TransferKey, Entry] = {}
        self._refs: dict[Ref, Entry] = {}
        self._expired: OrderedDict[TransferKey, None] = OrderedDict()
        self._ahead = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def claimed(self) -> int:
        """Operations that hold a claim or still read."""
        return len(self._refs) - self._ahead

    def holders(self) -> dict[int, int]:
        """Per peer: operations that hold a claim or still read."""
        return Counter(peer for (peer, _), entry in self._refs.items() if entry.ahead is None)

    def entries(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def check(self, key: TransferKey) -> None:
        """Raise :class:`KeyClaimed` where :meth:`offer` would."""
        entry = self._entries.get(key)
        if entry is not None and entry.touched:
            raise KeyClaimed

    def offer(
        self, key: TransferKey, payload: Payload, owner: str, consumers: int, expires: float
    ) -> Entry:
        """List a payload. One under the same key has been unlisted before."""
        if self._expired:
            self._expired.pop(key, None)
        entry = self._entries[key] = Entry(key, payload, owner, consumers, expires)
        return entry

    def get(self, key: TransferKey) -> Entry | None:
        return self._entries.get(key)

    def has_expired(self, key: TransferKey) -> bool:
        return key in self._expired

    def claim(self, ref: Ref, entry: Entry) -> None:
        entry.claims.add(ref)
        entry.state = EntryState.CLAIMED
        entry.payload.pin()
        self._refs[ref] = entry

    def lend(self, ref: Ref, entry: Entry) -> None:
        """A receiver is offered it ahead: it may take it at any moment, so the slots are pinned."""
        entry.ahead = ref
        entry.recalled = False
        entry.payload.pin()
        self._refs[ref] = entry
        self._ahead += 1

    def refs(self) -> list[Ref]:
        """Operations that pin memory: claims, readers, offers made ahead."""
        return list(self._refs)

    def taken(self, ref: Ref) -> Entry | None:
        """The entry of an operation; what was offered ahead becomes a claim by being used."""
        entry = self._refs.get(ref)
        if entry is not None and entry.ahead == ref:
            entry.ahead = None
            self._ahead -= 1
            entry.claims.add(ref)
            if entry.listed:
                entry.state = EntryState.CLAIMED
        return entry

    def entry_of(self, ref: Ref) -> Entry | None:
        return self._refs.get(ref)

    def deliver(self, ref: Ref) -> None:
        """The receiver's get has returned; it may read on until :meth:`finish`."""
        entry = self._refs[ref]
        if ref not in entry.claims:
            return
        entry.claims.discard(ref)
        entry.readers.add(ref)
        entry.delivered += 1
        if entry.listed and entry.delivered >= entry.consumers:
            self.unlist(entry, EntryState.CONSUMED)

    def finish(self, ref: Ref) -> Entry:
        """The receiver touches the memory no more; an undelivered payload is on offer again."""
        entry = self._refs.pop(ref)
        if entry.ahead == ref:
            entry.ahead = None
            self._ahead -= 1
        entry.claims.discard(ref)
        entry.readers.discard(ref)
        if entry.state is EntryState.CLAIMED and not entry.claims:
            entry.state = EntryState.OFFERED
        entry.payload.unpin()
        return entry

    def unlist(self, entry: Entry, state: EntryState) -> None:
        """Take it off the table. Its slots stay for as long as claims and readers pin them."""
        entry.state = state
        del self._entries[entry.key]
        entry.payload.drop()

    def owned_by(self, owner: str) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.owner == owner]

    def expire(self, now: float) -> list[Entry]:
        """Take off what nobody has claimed in time."""
        gone = []
        for entry in self._entries.values():
            if entry.expires > now:
                if entry.expires == math.inf:
                    continue
                break  # in order of time: every other entry lives equally long
            if not entry.claims and entry.ahead is None:
                gone.append(entry)
        for entry in gone:
            self.bury(entry)
        return gone

    def overdue(self, now: float) -> list[Entry]:
        """What is over its time and was offered ahead: to be recalled before it can expire."""
        late = []
        for entry in self._entries.values():
            if entry.expires > now:
                if entry.expires == math.inf:
                    continue
                break
            if entry.ahead is not None:
                entry.overdue = True
                late.append(entry)
        return late

    def bury(self, entry: Entry) -> None:
        """It has expired; the key is remembered for a while."""
        self.unlist(entry, EntryState.EXPIRED)
        self._expired[entry.key] = None
        while len(self._expired) > TOMBSTONES:
            self._expired.popitem(last=False)

    def next_expiry(self) -> float | None:
        """When :meth:`expire` is worth calling; ``None`` while there is nothing to wait for."""
        for entry in self._entries.values():
            if not entry.claims and not entry.overdue and entry.expires < math.inf:
                return entry.expires
        return None
