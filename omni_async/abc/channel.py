"""Channel: an ordered, reliable line of messages to one peer, and how it comes to be.

In: messages. Out: the peer's messages, and word of its end.
Never: interprets a message beyond the handshake, blocks, drops what it accepted.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from ..model import Endpoint

if TYPE_CHECKING:  # the words are a room above; only their names are needed here
    from ..rendezvous.messages import Hello, Message


class Channel(abc.ABC):
    """A line to one incarnation of one peer. All calls come from its event loop."""

    peer: Hello
    """What the peer said in its handshake."""
    name: str
    """For people: address, process id."""
    end_proves: ClassVar[bool] = True
    """An end that the other side made (no ``ProtocolError``) proves that its process touches nothing
    here any more. Not so where bytes travel on other connections than words."""

    @abc.abstractmethod
    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queue a message; descriptors in ``fds`` are duplicated to the peer with it.

        Never blocks. After the end of the line it does nothing: the handler has been told.
        """

    def send_many(self, messages: Sequence[Message]) -> None:
        """Queue words that travel together where the line can do so."""
        for message in messages:
            self.send(message)

    def poll(self) -> None:  # noqa: B027 - where nothing can lie unread, there is nothing to do
        """Hand over what has arrived already, without waiting for the loop's next turn.

        Not from inside a handler.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Write what is queued now instead of at the end of this turn of the loop."""

    @property
    @abc.abstractmethod
    def queued(self) -> int:
        """Bytes accepted and not yet written."""

    def when_written(self, call: Callable[[], None]) -> None:  # noqa: B027 - see below
        """Call back once, in a later turn of the loop: little is queued by then, or the line has ended.

        Where nothing is ever queued, nobody asks.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Write what is queued as far as the socket takes it, then end the line. Idempotent."""

    @abc.abstractmethod
    def detach(self) -> int:
        """End the line for messages, but keep its descriptor open and return it.

        The peer sees the line end only when that descriptor is closed: the owner of memory that is
        still being read here learns so that the last reader is gone. Works inside
        :meth:`ChannelHandler.ended` too. Returns -1 where there is none.
        """


class ChannelHandler(Protocol):
    """Who hears of channels. Called on the event loop, never re-entered from ``send``."""

    def opened(self, channel: Channel) -> None:
        """The handshake is done both ways."""

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        """A message came; its descriptors belong to the handler now."""

    def silent(self, channel: Channel, seconds: float) -> None:
        """No sign of life for this long (2 s, then again at ``peer_timeout``)."""

    def ended(self, channel: Channel, error: Exception | None) -> None:
        """The line is gone: end of file, reset, or a broken rule of the protocol (``ProtocolError``)."""


class Stranger(Protocol):
    """A request of somebody who speaks another wire to this port, and waits for one answer."""

    body: bytes
    name: str
    """For people: as much as is known of it."""

    def answer(self, body: bytes) -> None:
        """Reply, once; where the other side has gone it does nothing. On the listener's event loop."""
        ...


class Listener(abc.ABC):
    """Accepts channels until closed."""

    address: str
    """What a dialer of this kind of channel takes."""
    host: str = ""
    """What a receipt's metadata tells as ``source_host``; :attr:`address` where it is empty."""
    port: int = 0
    """Likewise ``source_port``."""
    on_stranger: Callable[[Stranger], None] | None = None
    """Hears requests of another wire, where this kind of channel can be sent such; without it they are
    counted and dropped."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop accepting; channels stay. Idempotent."""


class Dialer(abc.ABC):
    """Keeps one channel to one address: connects, and connects again after it ended."""

    address: str
    channel: Channel | None
    on_refused: Callable[[Exception], None] | None = None
    """Hears that a peer is there and will not talk: not once, which may be its last breath."""

    @abc.abstractmethod
    def refused(self) -> Exception | None:
        """Why there is no channel now: what the last attempt ran into, or ``None`` before the first."""

    @abc.abstractmethod
    async def attempt(self) -> Channel | None:
        """Try once, now, unless there is a channel; ``None`` when nobody is there.

        Cancellation: safe.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop dialling and close the channel. Idempotent."""


class Channels(abc.ABC):
    """One kind of channel with its options: makes listeners and dialers."""

    @abc.abstractmethod
    def address_of(self, endpoint: Endpoint) -> str | None:
        """Where a sender endpoint listens, as far as its name tells; ``None`` where it does not."""

    @abc.abstractmethod
    async def listen(self, endpoint: Endpoint, hello: Hello, handler: ChannelHandler) -> Listener:
        """Bind the sender's address.

        Raises:
            UsageError: somebody else is listening there; the text names the process.
        """

    @abc.abstractmethod
    def dial(self, address: str, hello: Hello, handler: ChannelHandler) -> Dialer:
        """Begin to keep a channel to ``address``: back-off 1 to 50 ms until somebody listens."""
