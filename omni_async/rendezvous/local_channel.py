"""Local channel: words between two transports of one process, on one event loop or on two.

In: words. Out: the same objects, on the other side's loop, in a later turn.
Never: encodes, polls, calls a handler from inside ``send``.

Words are handed over by reference: neither side changes one after it was sent. Descriptors are
duplicated, as between processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from .._aio.fork import close_in_child
from ..abc import Channel, ChannelHandler, Channels, Dialer, Listener
from ..errors import ProtocolError, UsageError
from ..model import Endpoint
from .framing import close_fds, duplicates, fds_of
from .handshake import Disagreement, disagreement
from .messages import Hello, Message
from .unix_address import parts_of

_REDIAL_DELAY = 0.001
_REFUSED_DELAY = 0.5
_WORDS_PER_TURN = 256


class _Opened:
    """First in every inbox."""


class _Ended:
    """Last in an inbox."""

    def __init__(self, *, held: bool) -> None:
        self.held = held
        """The other side has detached: its descriptor stays open."""


_Item: TypeAlias = "Message | _Opened | _Ended"


class _Meeting:
    """Who listens in this process, and who waits for somebody to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listeners: dict[str, LocalListener] = {}
        self.waiting: dict[str, set[LocalDialer]] = {}


_meeting = _Meeting()


def _forget_parent() -> None:
    global _meeting
    _meeting = _Meeting()


os.register_at_fork(after_in_child=_forget_parent)


class LocalLine(Channel):
    """One end of a line; the other end is an object of this process too."""

    __slots__ = (
        "_handler", "_inbox", "_lifeline", "_loop", "_open", "_other", "_owner", "_scheduled", "name",
        "peer",
    )  # fmt: skip

    _other: LocalLine

    def __init__(
        self,
        name: str,
        peer: Hello,
        handler: ChannelHandler,
        loop: asyncio.AbstractEventLoop,
        owner: LocalDialer | None,
        lifeline: socket.socket,
    ) -> None:
        self.name = name
        self.peer = peer
        self._handler = handler
        self._loop = loop
        self._owner = owner
        self._inbox: deque[tuple[_Item, list[int]]] = deque()
        self._scheduled = False
        self._open = True
        # Nothing is ever written to it: as between processes, one end reads end of file when the
        # other is closed, by whoever owns it then.
        self._lifeline = lifeline
        close_in_child(lifeline)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Hand a word to the other side; see :class:`Channel`.

        Raises:
            UsageError: the word names another number of descriptors.
            OSError: this process has no descriptor left to duplicate with.
        """
        if not self._open:
            return
        if fds or fds_of(message):
            wanted = fds_of(message)
            if len(fds) != wanted:
                raise UsageError(f"the word names {wanted} descriptors, {len(fds)} were given")
            self._give(message, duplicates(fds))
        else:
            self._give(message, [])

    def _give(self, item: _Item, fds: list[int]) -> None:
        """Hand over, unless the other side has left: word of that is on its way."""
        other = self._other
        if not other._open:
            close_fds(fds)
            return
        other._inbox.append((item, fds))
        if not other._open:  # it left on its own thread a moment ago
            other._empty()
        # Cleared before the inbox is emptied, so an item is never left behind without a wake-up.
        if other._scheduled:
            return
        other._scheduled = True
        try:
            if other._loop is self._loop:
                self._loop.call_soon(other._work)
            else:
                other._loop.call_soon_threadsafe(other._work)
        except RuntimeError:
            # Its lifeline stays open: whoever forgot to close may still read memory of this side.
            other._open = False
            other._empty()
            if self._open:
                error = ProtocolError(f"{self.name}: its event loop was closed, the line was not")
                self._loop.call_soon(self._end, error)

    def _work(self) -> None:
        self._scheduled = False
        inbox = self._inbox
        try:
            for _ in range(_WORDS_PER_TURN):
                if not inbox or not self._open:
                    return
                item, fds = inbox.popleft()
                if isinstance(item, Message):
                    self._handler.received(self, item, fds)
                elif isinstance(item, _Opened):
                    if self._owner is not None:
                        self._owner.opened(self)
                    self._handler.opened(self)
                elif item.held:
                    raise ProtocolError("it does not listen any more, but keeps the line")
                else:
                    self._end(None)
        except ProtocolError as error:
            self._end(ProtocolError(f"{self.name}: {error}", peer=self.name))
        finally:
            if not self._open:
                self._empty()
            elif inbox and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._work)

    def flush(self) -> None:
        """Nothing to do: a word is never kept back."""

    @property
    def queued(self) -> int:
        """Always 0: a word is the other side's at once."""
        return 0

    def close(self) -> None:
        """End the line; what was sent before still arrives. Idempotent."""
        if self._open:
            self._leave(held=False)
            self._tell_owner(None)
        self._lifeline.close()

    def detach(self) -> int:
        """End the line for words; the other side's descriptor ends when the returned one is closed.

        The other side is told at once that nobody listens. Also inside ``ended``, for an end the
        other side has not seen yet; -1 when the descriptor is closed.
        """
        if self._open:
            self._leave(held=True)
            self._tell_owner(None)
        return self._lifeline.detach()

    def _end(self, error: Exception | None) -> None:
        if not self._open:
            return
        self._open = False
        self._empty()
        try:
            self._tell_owner(error)
            self._handler.ended(self, error)
        finally:
            self._give(_Ended(held=self._lifeline.fileno() < 0), [])
            self._lifeline.close()

    def _leave(self, *, held: bool) -> None:
        self._open = False
        self._empty()
        self._give(_Ended(held=held), [])

    def _empty(self) -> None:
        with contextlib.suppress(IndexError):  # both threads may empty it
            while True:
                close_fds(self._inbox.popleft()[1])

    def _tell_owner(self, error: Exception | None) -> None:
        if self._owner is not None:
            self._owner.gone(self, error)


class LocalListener(Listener):
    """Accepts dialers of this process until closed."""

    def __init__(self, address: str, hello: Hello, handler: ChannelHandler) -> None:
        self.address = address
        self.hello = hello
        self.handler = handler
        self.loop = asyncio.get_running_loop()
        self.dropped = 0
        """Dialers that were refused."""
        self.last_drop: Exception | None = None

    def close(self) -> None:
        """Stop accepting; lines that stand stay. Idempotent."""
        with _meeting.lock:
            if _meeting.listeners.get(self.address) is self:
                del _meeting.listeners[self.address]


class LocalDialer(Dialer):
    """Is told when somebody listens; never asks twice."""

    def __init__(self, address: str, hello: Hello, handler: ChannelHandler) -> None:
        self.address = address
        self.channel: Channel | None = None
        self._hello = hello
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._error: Exception | None = None
        self._trial: LocalLine | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self._connect()

    def refused(self) -> Exception | None:
        """``ConnectionRefusedError`` for nobody there, ``ProtocolError`` for a refusal."""
        return self._error

    async def attempt(self) -> Channel | None:
        """Try once, now, unless there is a channel; ``None`` when nobody is there.

        Cancellation: safe.
        """
        if self.channel is None and self._trial is None:
            self._connect()
        if self._trial is not None:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self.channel

    def _connect(self) -> None:
        if self._closed or self._trial is not None or self.channel is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with _meeting.lock:
            listener = _meeting.listeners.get(self.address)
            if listener is None or listener.loop.is_closed():
                _meeting.waiting.setdefault(self.address, set()).add(self)
                self._error = ConnectionRefusedError(f"nobody listens at {self.address}")
                return
        reason = disagreement(self._hello, listener.hello)
        if reason is None:
            self._pair(listener)
            return
        self._error = Disagreement(f"{self.address}: {reason}", peer=self.address)
        listener.dropped += 1
        listener.last_drop = self._error
        self._timer = self._loop.call_later(_REFUSED_DELAY, self._connect)
        if self.on_refused is not None:
            self.on_refused(self._error)

    def _pair(self, listener: LocalListener) -> None:
        mine, other = socket.socketpair()
        here = LocalLine(self.address, listener.hello, self._handler, self._loop, self, mine)
        there = LocalLine(self.address, self._hello, listener.handler, listener.loop, None, other)
        here._other, there._other = there, here
        self._trial = here
        here._give(_Opened(), [])
        there._give(_Opened(), [])

    def wake(self) -> None:
        """Somebody listens now; called from any thread."""
        with contextlib.suppress(RuntimeError):  # its loop was closed and the dialer was not
            self._loop.call_soon_threadsafe(self._connect)

    def opened(self, line: LocalLine) -> None:
        """The line stands."""
        self._trial = None
        self.channel = line
        self._error = None
        self._settle()

    def gone(self, line: LocalLine, error: Exception | None) -> None:
        """The line has ended, by whichever side."""
        self._trial = None
        self.channel = None
        self._error = error or ConnectionResetError(f"{line.name} has ended")
        if not self._closed:
            self._timer = self._loop.call_later(_REDIAL_DELAY, self._connect)
        self._settle()

    def _settle(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Stop dialling and close the channel. Idempotent."""
        self._closed = True
        with _meeting.lock:
            waiting = _meeting.waiting.get(self.address)
            if waiting is not None:
                waiting.discard(self)
                if not waiting:
                    del _meeting.waiting[self.address]
        if self._timer is not None:
            self._timer.cancel()
        for line in (self._trial, self.channel):
            if line is not None:
                line.close()


class LocalChannels(Channels):
    """Channels inside one process."""

    def address_of(self, endpoint: Endpoint) -> str:
        """``local:…``, known in this process only."""
        return "local:" + "/".join(parts_of(endpoint))

    async def listen(
        self, endpoint: Endpoint, hello: Hello, handler: ChannelHandler
    ) -> LocalListener:
        """Take the address and wake who waits for it.

        Raises:
            UsageError: somebody in this process listens there.

        Cancellation: safe.
        """
        listener = LocalListener(self.address_of(endpoint), hello, handler)
        with _meeting.lock:
            holder = _meeting.listeners.get(listener.address)
            if holder is not None and not holder.loop.is_closed():
                raise UsageError(
                    f"{endpoint} is served in this process (process {os.getpid()}) already: one "
                    f"sender per namespace, stage, rank and replica; close that one, or use "
                    f"another namespace, rank or replica"
                )
            _meeting.listeners[listener.address] = listener
            waiting = _meeting.waiting.pop(listener.address, set())
        for dialer in waiting:
            dialer.wake()
        return listener

    def dial(self, address: str, hello: Hello, handler: ChannelHandler) -> LocalDialer:
        """Begin to keep a channel to ``address``."""
        return LocalDialer(address, hello, handler)
