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
import threading
from collections import deque
from collections.abc import Sequence

from ..abc import Channel, ChannelHandler, Channels, Dialer, Listener
from ..errors import ProtocolError, UsageError
from ..model import Endpoint
from .framing import close_fds, duplicates, fds_of
from .handshake import disagreement
from .messages import Hello, Message
from .unix_address import parts_of

_REDIAL_DELAY = 0.001
_REFUSED_DELAY = 0.5
_WORDS_PER_TURN = 256


class _Opened:
    """First in every inbox."""


class _Ended:
    """Last in an inbox, unless ``_Held`` is."""


class _Held:
    """The other side has detached; the read end of a pipe that ends when it lets go."""

    def __init__(self, fd: int) -> None:
        self.fd = fd


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
        "_handler", "_held", "_inbox", "_loop", "_open", "_other", "_owner", "_scheduled", "name",
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
    ) -> None:
        self.name = name
        self.peer = peer
        self._handler = handler
        self._loop = loop
        self._owner = owner
        self._inbox: deque[tuple[Message | _Opened | _Ended | _Held, list[int]]] = deque()
        self._scheduled = False
        self._open = True
        self._held = -1

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

    def _give(self, item: Message | _Opened | _Ended | _Held, fds: list[int]) -> None:
        if not self._other.take(item, fds):
            close_fds(fds)
            if self._open and not isinstance(item, (_Ended, _Held)):
                self._loop.call_soon(self._end, ConnectionResetError(f"{self.name} is gone"))

    def take(self, item: Message | _Opened | _Ended | _Held, fds: list[int]) -> bool:
        """Called by the other side, on its thread. ``False``: nobody will ever look at it."""
        if not self._open:
            return False
        self._inbox.append((item, fds))
        # Cleared before the inbox is emptied, so an item is never left behind without a wake-up.
        if self._scheduled:
            return True
        self._scheduled = True
        try:
            if self._loop is asyncio._get_running_loop():
                self._loop.call_soon(self._work)
            else:
                self._loop.call_soon_threadsafe(self._work)
        except RuntimeError:  # its loop was closed without closing the line
            self._open = False
            self._inbox.clear()
            return False
        return True

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
                elif isinstance(item, _Held):
                    self._held = item.fd
                    self._loop.add_reader(item.fd, self._end, None)
                else:
                    self._end(None)
        except ProtocolError as error:
            self._end(error)
        finally:
            if inbox and self._open and not self._scheduled:
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
            self._leave()
            self._give(_Ended(), [])
            self._tell_owner(None)

    def detach(self) -> int:
        """End the line for words; the other side sees its end when the returned descriptor closes."""
        if not self._open:
            return -1
        reading, writing = os.pipe()
        self._leave()
        if not self._other.take(_Held(reading), []):
            os.close(reading)
        self._tell_owner(None)
        return writing

    def _end(self, error: Exception | None) -> None:
        if not self._open:
            return
        self._leave()
        self._give(_Ended(), [])
        self._tell_owner(error)
        self._handler.ended(self, error)

    def _leave(self) -> None:
        self._open = False
        if self._held >= 0:
            self._loop.remove_reader(self._held)
            os.close(self._held)
            self._held = -1
        while self._inbox:
            item, fds = self._inbox.popleft()
            close_fds(fds)
            if isinstance(item, _Held):
                os.close(item.fd)

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
        self._error = ProtocolError(f"{self.address}: {reason}", peer=self.address)
        listener.dropped += 1
        listener.last_drop = self._error
        self._timer = self._loop.call_later(_REFUSED_DELAY, self._connect)

    def _pair(self, listener: LocalListener) -> None:
        here = LocalLine(self.address, listener.hello, self._handler, self._loop, self)
        there = LocalLine(self.address, self._hello, listener.handler, listener.loop, None)
        here._other, there._other = there, here
        self._trial = here
        if there.take(_Opened(), []):
            here.take(_Opened(), [])
        else:
            self.gone(here, None)

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
