"""The readers' half of streams, without I/O: all streams that are read from one sender endpoint.

In: readers, words of the sender, ends of the line. Out: words to send, items in order, readers to be told.
Never: hands an item over twice or out of order, reaches a clock, looks into a chunk.

::

    ASKING ──first item──> BEGUN ──End──> OVER ──last larger chunk is here──> (gone, Release)
       │                     ├──────────────┴──Fail, loss of the line──> (gone)
       │                     └── leave ──> (gone, Cancel)
       └── loss of the line: asks the next sender
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..model import TransferKey
from .messages import (
    Cancel,
    Chunk,
    Credit,
    End,
    Fail,
    FailCode,
    Item,
    Message,
    Open,
    Release,
    Segment,
)

EARLY = 256
"""Boundaries that may have overtaken an item; of chunks, credit lets no more than a window do so."""


class Gap:
    """An item is missing, and so much came behind it that it will not come any more."""

    __slots__ = ("expected", "received")

    def __init__(self, expected: int, received: int) -> None:
        self.expected = expected
        self.received = received


Arrived = Chunk | Segment | End | Fail | Gap | None
"""``None``: the sender was lost in the middle of the stream."""


class Inlet:
    """One stream as its reader sees it."""

    __slots__ = (
        "arrived", "begun", "chunks", "early", "fetching", "granted", "items", "key", "op", "over", "stir",
        "taken", "window",
    )  # fmt: skip

    def __init__(self, op: int, key: TransferKey, window: int) -> None:
        self.op = op
        self.key = key
        self.window = window
        self.granted = window
        """Chunks that credit was given for, from the begin on."""
        self.items = 0
        """Items that have arrived in order."""
        self.chunks = 0
        self.fetching = 0
        """Chunks of these that are larger, and not here yet."""
        self.taken = 0
        """Chunks that the reader is done with."""
        self.arrived: deque[Arrived] = deque()
        self.early: dict[int, Chunk | Segment | End] = {}
        self.begun = False
        self.over = False
        """Nothing comes behind what has arrived."""
        self.stir: Callable[[], None] = _nobody
        """Whom to call for what is in :attr:`Readers.stirred`."""


def _nobody() -> None:
    """Until a reader holds the inlet."""


class Readers:
    """Every stream that is read over one line, across all incarnations of its sender."""

    def __init__(self, say: Callable[[Message, bool], None], new_op: Callable[[], int]) -> None:
        self._say = say
        """Takes a word, and whether somebody waits for it."""
        self._new_op = new_op
        self.stirred: list[Inlet] = []
        """Inlets where something has arrived."""
        self.ignored = 0
        self._inlets: dict[int, Inlet] = {}
        self._connected = False

    def __len__(self) -> int:
        return len(self._inlets)

    @property
    def parked(self) -> int:
        """Streams that have not begun."""
        return sum(not inlet.begun for inlet in self._inlets.values())

    # --- readers ----------------------------------------------------------------------------------

    def open(self, key: TransferKey, window: int) -> Inlet:
        """Begin to read a stream, which may begin later."""
        inlet = Inlet(self._new_op(), key, window)
        self._inlets[inlet.op] = inlet
        if self._connected:
            self._ask(inlet)
        return inlet

    def took(self, inlet: Inlet, chunks: int = 1) -> None:
        """The reader is done with so many chunks: as many more may come, told in batches."""
        inlet.taken += chunks
        if inlet.over or not inlet.begun:
            return
        fresh = inlet.taken + inlet.window - inlet.granted
        if fresh >= max(1, inlet.window // 2):
            inlet.granted += fresh
            self._say(Credit(inlet.op, inlet.granted, inlet.taken), True)

    def fetched(self, inlet: Inlet) -> None:
        """A larger chunk is here, or will never be."""
        inlet.fetching -= 1
        if inlet.over and not inlet.fetching and inlet.op in self._inlets:
            self._release(inlet, False)

    def leave(self, inlet: Inlet) -> None:
        """The reader wants no more of it. Idempotent."""
        if inlet.op in self._inlets:
            if inlet.over:
                self._release(inlet, True)
            else:
                del self._inlets[inlet.op]
                if self._connected:
                    self._say(Cancel(inlet.op), True)
        inlet.over = True
        inlet.arrived.clear()
        inlet.early.clear()

    def _release(self, inlet: Inlet, urgent: bool) -> None:
        del self._inlets[inlet.op]
        self._say(Release(inlet.op, True), urgent)

    def _ask(self, inlet: Inlet) -> None:
        inlet.granted = inlet.window
        self._say(Open(inlet.op, *inlet.key, inlet.granted), True)

    # --- the line ---------------------------------------------------------------------------------

    def connected(self) -> None:
        """A line to (a new incarnation of) the sender stands."""
        self._connected = True
        for inlet in self._inlets.values():
            self._ask(inlet)

    def lost(self) -> None:
        """The line is gone: what has begun ends here, the rest waits for a successor."""
        self._connected = False
        for inlet in [inlet for inlet in self._inlets.values() if inlet.begun]:
            self._finish(inlet, None)

    def refused(self, text: str) -> None:
        """Somebody is there who will never answer: what waits for him ends."""
        for inlet in [inlet for inlet in self._inlets.values() if not inlet.begun]:
            self._finish(inlet, Fail(inlet.op, FailCode.REFUSED, text))

    def receive(self, message: Item | Fail) -> bool:
        """A word about a stream; ``False`` for a Fail that is about something else."""
        inlet = self._inlets.get(message.op)
        if inlet is None:
            if isinstance(message, Fail):
                return False
            self.ignored += 1
            return True
        if not inlet.begun:
            inlet.begun = True
            self.took(inlet, 0)  # its window may have grown since it asked
        if isinstance(message, Fail):
            self._finish(inlet, message)
        elif inlet.over or message.seq < inlet.items or message.seq in inlet.early:
            self.ignored += 1
        elif message.seq == inlet.items:
            self._take(inlet, message)
        elif len(inlet.early) >= inlet.window + EARLY:
            self._say(Cancel(inlet.op), True)
            self._finish(inlet, Gap(inlet.items, message.seq))
        else:
            assert isinstance(message, (Chunk, Segment, End))
            inlet.early[message.seq] = message
        return True

    def _take(self, inlet: Inlet, item: Item) -> None:
        following: Item | None = item
        while following is not None:
            inlet.items += 1
            assert isinstance(following, (Chunk, Segment, End))
            inlet.arrived.append(following)
            if isinstance(following, Chunk):
                inlet.chunks += 1
                inlet.fetching += following.inline is None
            elif isinstance(following, End):
                inlet.over = True
                inlet.early.clear()
                if not inlet.fetching:
                    self._release(inlet, False)
                break
            following = inlet.early.pop(inlet.items, None) if inlet.early else None
        self.stirred.append(inlet)

    def _finish(self, inlet: Inlet, last: Arrived) -> None:
        inlet.arrived.append(last)
        inlet.over = True
        inlet.early.clear()
        del self._inlets[inlet.op]
        self.stirred.append(inlet)
