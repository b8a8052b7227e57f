"""What producers and consumers share: a place on a transport, registered caches, peers that are met.

In: a stage or a transport, a layout, caches. Out: lines to peers whose layout fits, their words.
Never: decides what a word means beyond Meet; leaves memory registered that an engine may not use any more.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from .._aio.deadline import Deadlines
from ..errors import ClosedError, ProtocolError, UsageError
from ..model import Region, Role, Verb
from ..observe.log import get_logger
from ..transport.guests import GuestLine, Guests
from .arguments import Carrier, checked_carrier, checked_limit
from .caches import Caches
from .layout import KVLayout, match
from .memory import KVMemory
from .words import TOPIC, VERSION, AnyWord, Leave, Meet, Spot, decode, encode

_log = get_logger("omni_async.kv")

TRANSFER_TIMEOUT = 30.0
"""Seconds in which something of a transfer has to move, once it has begun."""
DEFER_TIMEOUT = 60.0
"""Seconds that one side waits for the other to take part."""
SETTLE_SECONDS = 5.0
"""How long leaving waits for engine operations that cannot be recalled."""


Self = TypeVar("Self", bound="KVEnd")

_numbers = itertools.count(1)


class Peer(NamedTuple):
    """One end on the other side of a line, as it has told."""

    line: GuestLine
    meet: Meet

    @property
    def layout(self) -> KVLayout:
        return self.meet.layout

    @property
    def who(self) -> str:
        """The same on another line."""
        return f"{self.line.peer.incarnation}.{self.meet.end}"


class KVEnd(abc.ABC):
    """A guest of one transport, from ``async with`` to its end.

    Args:
        carrier: an open transport, or a stage that has exactly one of this side's role.
        layout: of this rank's caches.
        caches: one item a layer (a tensor, or a pair of keys and values), or a :class:`KVMemory`. They are
            registered once, and read and written in place.
        transfer_timeout: seconds in which something of a transfer has to move, once it has begun; more than 0,
            ``None`` for no limit.
        defer_timeout: seconds that this side waits for the other to take part; the same.

    Raises:
        UsageError: a role, a backend or tensors that do not fit; says what does.
    """

    topic = TOPIC
    role: ClassVar[Role]

    def __init__(
        self,
        carrier: Carrier,
        layout: KVLayout,
        caches: KVMemory | Any,
        *,
        transfer_timeout: float | None = TRANSFER_TIMEOUT,
        defer_timeout: float | None = DEFER_TIMEOUT,
    ) -> None:
        self.layout = layout
        self.caches = Caches(layout, caches)
        self.transfer_timeout = checked_limit(transfer_timeout, "transfer_timeout")
        self.defer_timeout = checked_limit(defer_timeout, "defer_timeout")
        self.transport = checked_carrier(carrier, self.role)
        self.guests: Guests = self.transport.guests
        self.loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(self.loop)
        self._number = next(_numbers)
        self._names = itertools.count(1)
        self.peers: dict[str, Peer] = {}
        """By the name of the line, which is another one for each end that is met there."""
        self._lines: dict[GuestLine, str] = {}
        self._refused: dict[str, ProtocolError] = {}
        """Lines to ends whose layout does not fit."""
        self._regions: list[Region] = []
        self._closed = False
        self._ended = False
        self._opened = False

    # --- life -------------------------------------------------------------------------------------

    async def __aenter__(self: Self) -> Self:
        if self._opened:
            raise UsageError(f"this {type(self).__name__} was entered before; make another one")
        self._opened = True
        self.check_device()
        try:
            self._regions = self.register()
            self.guests.admit(self)
        except BaseException:
            self.unregister()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all transfers, tell the other sides, wait up to 5 s for what an engine still does. Idempotent.

        Whoever waits for a session or a progress gets its error. The transport stays open. A ``ResourceWarning``
        tells of a consumer's blocks into which something may still land.

        Raises:
            UsageError: a call from another loop.

        Cancellation: ends; what is still under way keeps its memory registered.
        """
        if self._ended:
            return
        self.here()
        if not self._closed:
            self._closed = True
            self.shut(f"the {type(self).__name__} of {self.transport.endpoint} was closed")
            self.flush()
        try:
            await self.settle()
        finally:
            self._ended = True
            for line in self._lines:
                line.say(TOPIC, encode(Leave(self.under_way)))
            self.guests.dismiss(self)
            self.deadlines.close()
            self.unregister()

    def here(self) -> None:
        """Raise for a call from another thread, or another loop.

        Raises:
            UsageError: it is one.
        """
        try:
            if asyncio.get_running_loop() is self.loop:
                return
        except RuntimeError:
            pass
        raise UsageError(
            f"the {type(self).__name__} of {self.transport.endpoint} belongs to another event loop: call it there"
        )

    def _ready(self) -> None:
        """Raise where nothing can be begun.

        Raises:
            UsageError: a call from elsewhere, see :meth:`here`, or before ``async with``.
            ClosedError: it was closed, or its transport.
        """
        self.here()
        name = type(self).__name__
        if self._closed:
            raise ClosedError(f"the {name} of {self.transport.endpoint} is closed")
        if not self._opened:
            raise UsageError(f"enter the {name} first, by 'async with'")

    @property
    def closed(self) -> bool:
        """Nothing can be begun any more: it was closed, or its transport."""
        return self._closed

    @property
    def writes(self) -> bool:
        """Whether producers write (WRITE); otherwise consumers read."""
        return self.guests.verb is Verb.WRITE

    def check_device(self) -> None:
        """Refuse caches that the engine cannot reach."""
        engine = self.guests.wiring.engine.device.partition(":")[0]
        mine = self.caches.device.partition(":")[0]
        if mine != "cpu" and engine != mine:
            raise UsageError(
                f"the caches are on {self.caches.device}, and {self.transport.capabilities.backend} was "
                f"opened for memory of {engine}: set memory_pool_device (or receive_device) to {mine!r}"
            )

    def register(self) -> list[Region]:
        """Make the caches reachable by peers."""
        return [self.guests.register(*span) for span in self.caches.spans(self.guests.verb)]

    def unregister(self) -> None:
        """End that."""
        for region in self._regions:
            self.guests.unregister(region)
        self._regions = []

    def spots(self, regions: list[Region], shift: int = 0) -> list[Spot]:
        """Where each tensor lies in what was registered.

        Args:
            shift: how far the registered addresses lie from those of the tensors.
        """
        spots = []
        for address in self.caches.addresses:
            at = address + shift
            region = next(r for r in regions if r.address <= at < r.address + r.nbytes)
            spots.append(Spot(region.id, at - region.address))
        return spots

    @abc.abstractmethod
    def meet_word(self) -> Meet:
        """What a new peer is told first."""

    # --- guest ------------------------------------------------------------------------------------

    def opened(self, line: GuestLine) -> None:
        self._lines[line] = str(next(self._names))
        self.introduce(line, asks=True)

    def heard(self, line: GuestLine, body: bytes) -> None:
        try:
            word = decode(body)
        except (msgspec.DecodeError, UsageError) as error:
            raise ProtocolError(
                f"no word about KV caches: {error}", peer=self.name_of(line)
            ) from None
        name = self._lines[line]
        if isinstance(word, Meet):
            self._meet(line, word)
        elif isinstance(word, Leave):
            self._left(line, proven=not word.under_way)
        elif name in self.peers or name in self._refused:
            self.word(line, word)
        # else it was for another end, which was here before
        self.flush()

    def ended(self, line: GuestLine, error: Exception | None, proven: bool) -> None:
        if line in self._lines:
            self._left(line, proven=proven)
            del self._lines[line]
            self.flush()

    def refused(self, address: str, error: Exception) -> None:  # noqa: B027 - consumers do
        """A producer dials nobody."""

    def closing(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            _log.warning("a transport was closed under its KV caches", reason=reason)
            self.shut(reason)
            self.flush()

    def introduce(self, line: GuestLine, to: int = 0, *, asks: bool = False) -> None:
        """Tell a peer where the caches lie."""
        word = self.meet_word()
        word.end, word.to, word.asks = self._number, to, asks
        line.say(TOPIC, encode(word))

    def _left(self, line: GuestLine, *, proven: bool) -> None:
        """Who was met on this line is not there any more."""
        name = self._lines[line]
        self.gone(line, name, proven)
        self.flush()
        self.peers.pop(name, None)
        self._refused.pop(name, None)
        self._lines[line] = str(next(self._names))

    def _meet(self, line: GuestLine, word: Meet) -> None:
        # Either side may have had an end before, and words for that one may still be on their way: what a
        # peer says counts from the word on in which it calls this end by its number.
        known = self.peers.get(self._lines[line])
        if known is not None and known.meet.end != word.end:
            self._left(line, proven=False)
        if word.to not in (0, self._number):
            return
        if word.asks:
            self.introduce(line, word.end, asks=not word.to)
        if not word.to:
            return
        name = self._lines[line]
        again = self.peers.pop(name, None) is not None
        self._refused.pop(name, None)
        try:
            self._fits(line, word)
        except ProtocolError as error:
            self._refused[name] = error
            _log.warning(
                "a peer's KV caches do not fit", peer=self.name_of(line), reason=str(error)
            )
            self.refuse(line, error)
            return
        self.peers[name] = Peer(line, word)
        if not again:
            self.met(line)

    def _fits(self, line: GuestLine, word: Meet) -> None:
        if word.version != VERSION:
            raise ProtocolError(
                f"the peer speaks version {word.version} of the words about KV caches, and this is {VERSION}",
                peer=self.name_of(line),
            )
        ours, theirs = self.layout, word.layout
        source, target = (ours, theirs) if self.role == "sender" else (theirs, ours)
        match(source, target, peer=self.name_of(line))
        if len(word.spots) != theirs.layers * len(theirs.tensor_nbytes):
            raise ProtocolError(
                f"the peer told {len(word.spots)} tensors, its layout has {theirs.layers} layers of "
                f"{len(theirs.tensor_nbytes)}",
                peer=self.name_of(line),
            )
        self.expected(line, theirs)

    def name_of(self, line: GuestLine) -> str:
        """A peer, for people."""
        return line.name

    def expected(self, line: GuestLine, theirs: KVLayout) -> None:  # noqa: B027 - a producer serves all
        """Raise ProtocolError for a peer that is another one than this side counts on."""

    def say(self, name: str, word: AnyWord) -> None:
        """Tell a peer; nobody where it has gone."""
        peer = self.peers.get(name)
        if peer is not None:
            peer.line.say(TOPIC, encode(word))
            return
        for line, known in self._lines.items():  # one that was refused is told why
            if known == name:
                line.say(TOPIC, encode(word))

    # --- what each side does ----------------------------------------------------------------------

    @abc.abstractmethod
    def met(self, line: GuestLine) -> None:
        """A peer is there whose layout fits."""

    @abc.abstractmethod
    def refuse(self, line: GuestLine, error: ProtocolError) -> None:
        """A peer is there whose layout does not fit."""

    @abc.abstractmethod
    def word(self, line: GuestLine, word: AnyWord) -> None:
        """A peer said something."""

    @abc.abstractmethod
    def gone(self, line: GuestLine, name: str, proven: bool) -> None:
        """A peer is not there any more; ``proven``: and with it whatever it could write."""

    @abc.abstractmethod
    def shut(self, reason: str) -> None:
        """Give up everything."""

    @property
    @abc.abstractmethod
    def under_way(self) -> bool:
        """Whether an engine still moves something for this end."""

    @abc.abstractmethod
    async def settle(self) -> None:
        """Wait for what is under way, up to :data:`SETTLE_SECONDS`."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Do what the core has decided."""
