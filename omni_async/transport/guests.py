"""Rooms above that share a transport's lines and engine: the caches of a serving engine, and who sends them.

In: words of theirs, memory of theirs, moves that they have planned. Out: words of peers, word of each end.
Never: interprets a word, owns or frees the memory, lets a move leave what a peer has announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from ..abc import Channel, RemoteRegion
from ..errors import UsageError
from ..model import Endpoint, Region, Role, Verb
from ..pool import Pool
from ..rendezvous.messages import Aside, Hello
from .hearing import Hearing
from .moving import Ended, Make
from .wiring import Wiring


class GuestLine(Protocol):
    """A line to one incarnation of one peer, as a guest has it."""

    @property
    def peer(self) -> Hello:
        """What the peer said of itself."""
        ...

    @property
    def name(self) -> str:
        """For people: address, process id."""
        ...

    @property
    def address(self) -> str:
        """(receiver) What :meth:`Guests.keep_line` returned; empty at a sender."""
        ...

    def region(self, number: int) -> RemoteRegion | None:
        """A region that the peer has announced, and not withdrawn. With MAP its memory is there for as long
        as somebody holds this value; no further than its length."""
        ...

    def say(self, topic: str, body: bytes) -> None:
        """Queue a word for the peer's guest of that topic; after the end of the line it does nothing."""
        ...

    def move(self, nbytes: int, make: Make, ended: Ended) -> None:
        """(WRITE, at a sender) write to the peer; (READ, at a receiver) read from it.

        ``make`` works out the moves, of ``nbytes`` together, when their turn comes. ``ended`` is called when no byte
        of it can be under way from here any more, also after the line has ended. All local memory has been registered,
        and stays until then.
        """
        ...


class Guest(Protocol):
    """Who hears of lines. Called on the event loop, never from inside a call of its own."""

    topic: str

    def opened(self, line: GuestLine) -> None:
        """A line is there: once for each, at once for those that were there before the guest."""

    def heard(self, line: GuestLine, body: bytes) -> None:
        """The peer's guest of this topic said something.

        Raises:
            ProtocolError: it makes no sense; the line is ended.
        """

    def ended(self, line: GuestLine, error: Exception | None, proven: bool) -> None:
        """The line is gone; ``proven`` tells that the peer writes here no more for certain."""

    def refused(self, address: str, error: Exception) -> None:
        """(receiver) Whoever listens where a line is kept lets nobody of this side in: of another wire version, say.

        It is dialed again, and told again.
        """

    def closing(self, reason: str) -> None:
        """The transport is about to close; lines still carry words."""


class Half(Protocol):
    """The sending or the receiving side of a transport, as far as guests need it."""

    def guest_lines(self) -> Iterator[GuestLine]: ...

    def announce(self, region: Region) -> None: ...

    def withdraw(self, region: Region) -> None: ...


class Dialing(Protocol):
    """What a receiving side has besides."""

    def keep_line(self, endpoint: Endpoint | None, metadata: Mapping[str, Any] | None) -> str: ...

    def leave_line(self, address: str) -> None: ...


class Guests:
    """Those of one transport, and the memory that they have brought."""

    def __init__(self, wiring: Wiring, half: Half, dialing: Dialing | None) -> None:
        self._wiring = wiring
        self._half = half
        self._dialing = dialing

    # facts

    @property
    def role(self) -> Role:
        return self._wiring.role

    @property
    def endpoint(self) -> Endpoint:
        return self._wiring.endpoint

    @property
    def verb(self) -> Verb:
        return self._wiring.engine.verb

    @property
    def wiring(self) -> Wiring:
        return self._wiring

    @property
    def pool(self) -> Pool:
        """For landing slots and gathered pieces."""
        return self._wiring.pool

    # guests

    def admit(self, guest: Guest) -> None:
        """Let a guest in; it hears of the lines that are there at once.

        Raises:
            UsageError: another one has this topic.
        """
        if guest.topic in self._wiring.guests:
            raise UsageError(
                f"this transport carries {guest.topic!r} for somebody else already: close that first"
            )
        self._wiring.guests[guest.topic] = guest
        for line in list(self._half.guest_lines()):
            guest.opened(line)

    def dismiss(self, guest: Guest) -> None:
        """It hears nothing more. Idempotent."""
        if self._wiring.guests.get(guest.topic) is guest:
            del self._wiring.guests[guest.topic]

    # memory

    def register(self, address: int, nbytes: int, fd: int = -1) -> Region:
        """Make memory of a guest reachable by all peers, as far as this engine's way needs it."""
        region = self._wiring.engine.register(address, nbytes, fd=fd)
        self._wiring.brought[region.id] = region
        self._half.announce(region)
        return region

    def unregister(self, region: Region) -> None:
        """End what :meth:`register` began, once no move uses it. Idempotent."""
        if self._wiring.brought.pop(region.id, None) is not None:
            self._half.withdraw(region)
            self._wiring.engine.unregister(region)

    # lines

    def keep_line(self, endpoint: Endpoint | None, metadata: Mapping[str, Any] | None) -> str:
        """(receiver) Dial a sender until it is there, and again whenever it is lost.

        Args:
            endpoint: who it is, where channels find peers by name.
            metadata: ``source_host`` and ``source_port``, where they do not.

        Returns:
            Its address, for :meth:`leave_line`; each call wants one of those.
        """
        assert self._dialing is not None
        return self._dialing.keep_line(endpoint, metadata)

    def leave_line(self, address: str) -> None:
        """The line is not needed any more."""
        assert self._dialing is not None
        self._dialing.leave_line(address)


def open_for_guests(wiring: Wiring, line: GuestLine) -> None:
    """Tell all guests of a new line."""
    for guest in list(wiring.guests.values()):
        guest.opened(line)


def hand_over(wiring: Wiring, line: GuestLine, word: Aside) -> None:
    """Give a word to whom it is for; where nobody is, the guest that comes later begins anew."""
    guest = wiring.guests.get(word.topic)
    if guest is not None:
        guest.heard(line, word.body)


def close_for_guests(wiring: Wiring, reason: str) -> None:
    """Tell all guests that the transport closes."""
    for guest in list(wiring.guests.values()):
        guest.closing(reason)


def end_for_guests(
    wiring: Wiring, line: OpenLine, error: Exception | None, *, proven: bool
) -> None:
    """Tell all guests that a line is gone."""
    for guest in list(wiring.guests.values()):
        guest.ended(line, error, proven)
    line.hearing.over()


def refuse_for_guests(wiring: Wiring, address: str, error: Exception) -> None:
    """Tell all guests that whoever is there lets nobody in."""
    for guest in list(wiring.guests.values()):
        guest.refused(address, error)


class OpenLine:
    """A :class:`GuestLine` over a channel."""

    def __init__(
        self,
        channel: Channel,
        move: Callable[[int, Make, Ended], None],
        known: Mapping[int, RemoteRegion],
        address: str = "",
    ) -> None:
        self.address = address
        self._channel = channel
        self._move = move
        self._known = known
        self.peer = channel.peer
        self.name = channel.name
        self.hearing = Hearing(channel)

    def region(self, number: int) -> RemoteRegion | None:
        return self._known.get(number)

    def say(self, topic: str, body: bytes) -> None:
        self._channel.send(Aside(topic, body))

    def move(self, nbytes: int, make: Make, ended: Ended) -> None:
        self._move(nbytes, make, partial(self._moved, ended))

    def _moved(self, ended: Ended, problem: str | None) -> None:
        heard_out = None if problem is None else self.hearing.out()
        if heard_out is None:
            ended(problem)
        else:
            heard_out.add_done_callback(lambda _: ended(problem))
