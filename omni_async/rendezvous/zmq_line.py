"""ZMQ line: one peer behind a zmq socket, from its handshake to its end.

In: messages that came from this peer, words to send. Out: the peer's words and its end, told to a handler.
Never: blocks, touches a zmq socket, knows whether the socket is its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Protocol

from ..abc import ChannelHandler
from ..errors import ProtocolError, UsageError
from .heartbeat import Heartbeat
from .messages import Bye, Heard, Hello, Message, Ping
from .turned_line import WORDS_PER_TURN, LineOptions, TurnedLine
from .zmq_window import Window
from .zmq_words import END, Waiting, Words, packed, word

_LAST_WORDS = 1.0
"""Seconds between a peer's farewell and the conclusion that its end of the line is not coming."""
_WORD_OF_END = 10.0
"""The same where a connection is known to be gone: what came over it may take its time."""
_WORTH_TELLING = 4 << 10


class Post(Protocol):
    """How a line's messages leave and its socket is looked at."""

    def put(self, body: bytes | bytearray) -> bool:
        """Send a message now; ``False``: no more is taken for the moment.

        Raises:
            ConnectionError: the peer is gone.
        """
        ...

    def look(self) -> None:
        """Hand over what has come."""
        ...

    def wait(self) -> None:
        """No more messages until :meth:`go_on`: the line has not taken the last one whole."""
        ...

    def go_on(self) -> None: ...

    def gone(self, line: ZmqLine, error: Exception | None) -> None:
        """The line is over, whoever ended it; what it sent is still to leave."""
        ...


class ZmqLine(TurnedLine):
    """A channel over messages to one peer.

    ``ended`` tells the handler of an end that came from the other side or from an error; who calls
    :meth:`close` or :meth:`detach` is not told of it. A ``ProtocolError`` that the handler raises
    from ``received`` ends the line with it. ``Ping`` and ``Heard`` are spoken and heard here only.

    Its end proves nothing about engines: their bytes travel on connections of their own.
    """

    __slots__ = (
        "_beat", "_handler", "_last_words", "_max_message", "_post", "_size", "_timer", "_waiting", "_window",
        "_words", "name", "peer",
    )  # fmt: skip

    end_proves: ClassVar[bool] = False

    def __init__(
        self, post: Post, name: str, peer: Hello, handler: ChannelHandler, options: LineOptions
    ) -> None:
        super().__init__()
        self.name = name
        self.peer = peer
        self._post = post
        self._handler = handler
        self._max_message = options.max_message
        self._window = Window()
        self._waiting = Waiting(options.max_message)
        self._beat = Heartbeat(options.silent_after, options.peer_timeout)
        self._words: Words | None = None
        """Of a message that has not been taken whole; the rest waits for the next turn of the loop."""
        self._size = 0
        self._timer = self._loop.call_later(self._beat.period, self._tick)
        self._last_words: asyncio.TimerHandle | None = None

    # -- sending ---------------------------------------------------------------------------------

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queue a word; see :class:`Channel`.

        The first one of a turn of the loop is sent at once, those after it together at the turn's end.
        What the peer has no room for yet waits here, in order.

        Raises:
            UsageError: the word is longer than the limit, or descriptors are to go with it.
        """
        if fds:
            raise UsageError("descriptors do not travel between hosts")
        if not self._open or self._mute:
            return
        self._beat.said = True
        if self._in_turn or self._waiting or not self._window.open:
            self._waiting.add(message)
            return
        body = self._waiting.alone(message)
        if not self._put(body) and self._open and not self._mute:
            self._waiting.add(message)
        self._in_turn = True
        self._loop.call_soon(self._turn_over)

    def send_many(self, messages: Sequence[Message]) -> None:
        """Queue words that belong together; the first of a turn take the rest along."""
        if not self._open or self._mute:
            return
        self._beat.said = True
        try:
            for message in messages:
                self._waiting.add(message)
        finally:  # those before one that was refused are not to be overtaken by the next
            if not self._in_turn:
                self.flush()
                self._in_turn = True
                self._loop.call_soon(self._turn_over)

    def flush(self) -> None:
        """Send what is queued now, as far as the peer has room for it."""
        waiting = self._waiting
        while waiting and self._window.open and self._put(waiting.first):
            waiting.sent()
        if self._when_written:
            self._tell_written()

    def _put(self, body: bytes | bytearray) -> bool:
        try:
            if not self._post.put(body):
                return False
        except ConnectionError as error:
            # Word of its end is on its way; what it said before may still lie in the socket.
            self._fall_silent(error, _WORD_OF_END)
            return False
        self._window.say(len(body))
        return True

    @property
    def queued(self) -> int:
        """Bytes accepted and, as far as the peer has told, not taken there."""
        return self._waiting.nbytes + self._window.outstanding.nbytes

    # -- receiving -------------------------------------------------------------------------------

    def poll(self) -> None:
        """See :class:`Channel`."""
        if self._open:
            self._post.look()

    def take(self, body: memoryview) -> int:
        """A message has come for this line. Returns: how many words of it were taken."""
        self._beat.heard = True
        if not body:
            self._end(None)
            return 0
        self._words = Words(body, self._max_message)
        self._size = len(body)
        return self._take_words()

    def open(self) -> None:
        """Tell the handler that the handshake is done."""
        try:
            self._handler.opened(self)
        except ProtocolError as error:  # what the peer says of its engine makes no sense
            self._end(error)

    def broken(self, reason: str) -> None:
        """What has come is no message of this wire."""
        self._end(ProtocolError(reason))

    def _take_more(self) -> None:
        if self._open:
            self._take_words()
            if self._words is None:
                self._post.go_on()

    def _take_words(self) -> int:
        words, handler = self._words, self._handler
        assert words is not None
        count = 0
        try:
            while self._open:
                if count == WORDS_PER_TURN:
                    self._continue()
                    break
                body = words.next()
                if body is None:
                    self._taken()
                    break
                count += 1
                message = word(body)
                if type(message) is Heard:
                    self._window.hear(message.nbytes, message.messages)
                    if self._waiting or self._when_written:
                        self.flush()
                    continue
                if type(message) is Ping:
                    continue
                if type(message) is Hello:
                    raise ProtocolError("a second Hello on one line")
                if type(message) is Bye and message.held is None:
                    self._fall_silent(
                        ProtocolError("it does not listen any more, but keeps the line"),
                        _LAST_WORDS,
                    )
                handler.received(self, message, [])
        except ProtocolError as error:
            self._end(error)
        except BaseException:
            # The handler failed over one word; those behind it must not wait for another message.
            self._continue()
            raise
        else:
            if self._in_turn and self._open:  # else nothing can have been queued
                self.flush()
        return count

    def _taken(self) -> None:
        """All words of a message have been handed over."""
        self._words = None
        self._window.take(self._size)
        if self._window.worth_telling:
            self._tell_taken()

    def _tell_taken(self) -> None:
        """Needs no room: what makes room at the other side must not wait for room here."""
        if self._open and not self._mute:
            self._beat.said = True
            self._put(packed(Heard(*self._window.tell())))

    def _continue(self) -> None:
        """Take the words behind in the next turn of the loop."""
        if self._open:
            self._post.wait()
            self._loop.call_soon(self._take_more)

    def _fall_silent(self, error: Exception, seconds: float) -> None:
        """The peer takes no words any more. Its end of the line is about to come; else this is why."""
        if not self._mute:
            self._mute = True
            self._waiting.clear()
            self._last_words = self._loop.call_later(seconds, self._end, error)

    # -- signs of life ---------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._beat.period, self._tick)
        speak, silence = self._beat.tick(time.monotonic())
        # Who takes nothing is not sent ever more signs of life.
        if self._window.untold >= _WORTH_TELLING or (speak and self._window.open):
            self._tell_taken()
        self.flush()
        self._waiting.rest()
        if silence is not None and self._open:
            self._handler.silent(self, silence)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what is queued as far as the peer has room, then end the line. Idempotent."""
        if self._open:
            self._leave(END)
            self._post.gone(self, None)

    def detach(self) -> int:
        """End the line like :meth:`close`; there is no descriptor that would prove anything."""
        self.close()
        return -1

    def lost(self, error: Exception | None) -> None:
        """The connection is gone, and everything that came over it has been handed over."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._open:
            return
        last = None if error is None or isinstance(error, ConnectionError) else END
        if isinstance(error, ProtocolError):
            self.send(Bye(reason=str(error)))  # says nothing of memory that is still read here
            error = type(error)(f"{self.name}: {error}", peer=self.name)
        self._leave(last)
        self._post.gone(self, error)
        self._handler.ended(self, error)

    def _leave(self, last: bytes | None) -> None:
        """Send what is queued, and the end behind it."""
        self.flush()
        if last is not None:
            self._put(last)
        self._open = False
        self._timer.cancel()
        if self._last_words is not None:
            self._last_words.cancel()
        self._waiting.clear()
        self._tell_written()
        if self._words is not None:
            self._words = None
            self._post.go_on()
