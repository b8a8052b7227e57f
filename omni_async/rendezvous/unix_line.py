"""Unix line: one connected Unix socket from its first word to its end.

In: a connected socket, words to send. Out: the peer's words and its end, told to a handler.
Never: blocks, hands the socket to the event loop's own transports (they drop descriptors).
"""

from __future__ import annotations

import array
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from .._aio.fork import close_in_child
from ..abc import ChannelHandler
from ..errors import ProtocolError
from .framing import MAX_FDS, FrameReader
from .handshake import Disagreement, disagreement, first_word
from .heartbeat import Heartbeat
from .messages import Bye, Hello, Message, Ping, Regions
from .outbox import Outbox
from .turned_line import WORDS_PER_TURN, LineOptions, TurnedLine
from .unix_peer import Peer

_ANCILLARY = socket.CMSG_SPACE(MAX_FDS * 4)
_SEND_BUFFER = 1 << 20
_LAST_WORDS = 0.01
"""Seconds between a peer's farewell and the conclusion that its end of the line stays open."""
_HELLO_LIMIT = 64 << 10
"""Bytes of the first word; who has not said it is not worth more memory."""
_PING = Ping()
_TRUNCATED = int(socket.MSG_CTRUNC)  # the flag itself is an enum, slow to compare
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)


class LineOwner(Protocol):
    """Who made the line: a listener or a dialer."""

    def settled(self, line: UnixLine, error: Exception | None) -> None:
        """The handshake has ended; with an error the line is closed already."""

    def gone(self, line: UnixLine, error: Exception | None) -> None:
        """A line whose handshake had succeeded is over, whoever ended it."""


class UnixLine(TurnedLine):
    """A channel over a socket this object owns.

    ``ended`` tells the handler of an end that came from the other side or from an error; who calls
    :meth:`close` or :meth:`detach` is not told of it. A ``ProtocolError`` that the handler raises
    from ``received`` ends the line with it. ``Ping`` is spoken and heard here only.
    """

    __slots__ = (
        "_beat", "_handler", "_hello", "_limit", "_met", "_more", "_outbox", "_owner", "_reader", "_sock",
        "_speaks_first", "_timer", "_writing", "name", "peer", "process",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        process: Peer,
        hello: Hello,
        handler: ChannelHandler,
        owner: LineOwner,
        options: LineOptions,
        *,
        speaks_first: bool,
    ) -> None:
        super().__init__()
        self.name = f"{address} ({process})"
        self.process = process
        self._sock = sock
        self._hello = hello
        self._handler = handler
        self._owner = owner
        self._speaks_first = speaks_first
        self._reader = FrameReader(min(_HELLO_LIMIT, options.max_message))
        self._outbox = Outbox(sock, options.max_message)
        self._beat = Heartbeat(options.silent_after, options.peer_timeout)
        self._limit = options.max_message
        self._met = False  # the handshake is done
        self._more = False  # words that have come wait for the next turn of the loop
        self._writing = False  # waiting until the socket takes more
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        close_in_child(sock)
        self._loop.add_reader(sock.fileno(), self._readable)
        self._timer = self._loop.call_later(
            options.handshake_timeout, self._no_hello, options.handshake_timeout
        )
        if speaks_first:
            self.send(hello)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queue a word; see :class:`Channel`.

        The first one of a turn of the loop is written at once, those after it together at the
        turn's end. Descriptors are duplicated before this returns: the caller's stay the caller's.

        Raises:
            UsageError: the word is longer than the limit, or names another number of descriptors.
            OSError: this process has no descriptor left to duplicate with.
        """
        if not self._open or self._mute:
            return
        self._beat.said = True
        if self._in_turn or self._writing:
            self._outbox.queue(message, fds)
            return
        if fds or type(message) is Regions:
            self._outbox.queue(message, fds)
            self._write()
        else:
            try:
                if not self._outbox.now(message):
                    self._wait_writable()
            except OSError as error:
                self._broken(error)
        self._in_turn = True
        self._loop.call_soon(self._turn_over)

    def send_many(self, messages: Sequence[Message]) -> None:
        """Queue words that belong together; the first of a turn take the rest along."""
        if not self._open or self._mute:
            return
        self._beat.said = True
        try:
            for message in messages:
                self._outbox.queue(message)
        finally:  # those before one that was refused are not to be overtaken by the next
            if not (self._in_turn or self._writing):
                self._write()
                self._in_turn = True
                self._loop.call_soon(self._turn_over)

    def flush(self) -> None:
        """Write what is queued now, as far as the socket takes it."""
        if self._open and self._outbox and not self._writing:
            self._write()

    @property
    def queued(self) -> int:
        """Bytes accepted and not yet written."""
        return len(self._outbox)

    def _write(self) -> None:
        try:
            if not self._outbox.write():
                self._wait_writable()
        except OSError as error:
            self._broken(error)
        if self._when_written:
            self._tell_written()

    def _wait_writable(self) -> None:
        self._writing = True
        self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        self._stop_writing()
        self._write()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _broken(self, error: OSError) -> None:
        """Nothing can be written any more. What the peer said last may still lie in the socket."""
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            self._fall_silent()
        else:
            self._mute = True
            self._outbox.clear()
            self._loop.call_soon(self._end, error)

    def _fall_silent(self) -> None:
        """The peer takes no words any more; its end is there or about to come."""
        self._mute = True
        self._stop_writing()
        self._outbox.clear()
        self._loop.call_later(_LAST_WORDS, self._hear_out)

    def _hear_out(self) -> None:
        """Read up to the peer's end, or find that it has only stopped listening."""
        if self._open:
            if self._readable():
                self._loop.call_soon(self._hear_out)
            else:
                self._end(ProtocolError("it does not listen any more, but keeps the line"))

    # -- receiving -------------------------------------------------------------------------------

    def poll(self) -> None:
        """Read once, now; see :class:`Channel`."""
        if self._met and self._open:
            self._readable()

    def _readable(self) -> bool:
        """Take what lies in the socket; ``False`` when nothing does."""
        if self._more:  # what came before is taken first
            return True
        try:
            nbytes, beside, flags, _ = self._sock.recvmsg_into(
                [self._reader.space()], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(error)
            return True
        try:
            self._reader.took(nbytes, descriptors(beside) if beside else ())
            if flags & _TRUNCATED:
                raise ProtocolError(
                    "a descriptor that was passed could not be received: this process may have no "
                    "more of them (ulimit -n)"
                )
        except ProtocolError as error:
            self._end(error)
            return True
        if nbytes:
            self._take_words()
        elif self._reader.partial:
            self._end(
                ProtocolError(f"ended inside a word after {self._reader.partial} bytes of it")
            )
        else:
            self._end(None)
        return True

    def _take_more(self) -> None:
        self._more = False
        if self._open:
            self._take_words()

    def _take_words(self) -> None:
        reader, handler = self._reader, self._handler
        self._beat.heard = True
        try:
            if not self._met and not self._meet():
                return
            for _ in range(WORDS_PER_TURN):
                if not self._open or (message := reader.next()) is None:
                    reader.settle()
                    break
                if type(message) is Ping:
                    continue
                if type(message) is Hello:
                    raise ProtocolError("a second Hello on one line")
                if type(message) is Bye and message.held is None and not self._mute:
                    self._fall_silent()
                handler.received(self, message, reader.fds)
            else:
                self._continue()
        except ProtocolError as error:
            self._end(error)
        except BaseException:
            # The handler failed over one word; those behind it must not wait for more bytes.
            self._continue()
            raise
        else:
            if self._in_turn:  # else nothing can have been queued
                self.flush()

    def _continue(self) -> None:
        """Take the words behind in the next turn of the loop."""
        if not self._more:
            self._more = True
            self._loop.call_soon(self._take_more)

    # -- handshake -------------------------------------------------------------------------------

    def _meet(self) -> bool:
        """Take the first word. ``False``: not all of it has come, or the peer is gone."""
        body = self._reader.body()
        if body is None:
            return False
        theirs = first_word(body, self._hello.role)
        reason = disagreement(self._hello, theirs)
        if reason is not None:
            raise Disagreement(reason)
        if not self._speaks_first:
            self.send(self._hello)
            if self._mute:  # it has given up meanwhile: this line never existed
                self._end(None)
                return False
        self._reader.limit = self._limit
        self.peer = theirs
        self._met = True
        self._timer.cancel()
        self._timer = self._loop.call_later(self._beat.period, self._tick)
        self._owner.settled(self, None)
        self._handler.opened(self)
        return True

    def _no_hello(self, seconds: float) -> None:
        self._end(ProtocolError(f"no Hello within {seconds:g} s"))

    # -- signs of life ---------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._beat.period, self._tick)
        speak, silence = self._beat.tick(time.monotonic())
        if speak and not self._outbox:
            self.send(_PING)
        self._reader.rest()
        self._outbox.rest()
        if silence is not None:
            self._handler.silent(self, silence)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is queued as far as the socket takes it, then end the line. Idempotent."""
        if self._open:
            self._leave()
            self._tell_owner(None)
        self._sock.close()

    def detach(self) -> int:
        """End the line and return its open descriptor, which the caller owns; see :class:`Channel`.

        What is queued is written as far as the socket takes it. Also inside ``ended``, for an end the
        other side has not seen yet; -1 when the descriptor is closed.
        """
        # Nothing is shut down: whoever detaches may wait on the descriptor for the peer's end of
        # file, and the peer may take the same from the descriptor's closing, and from that alone.
        if self._open:
            self._leave()
            self._tell_owner(None)
        return self._sock.detach()

    def _end(self, error: Exception | None) -> None:
        if not self._open:
            return
        if isinstance(error, ProtocolError):
            self.send(Bye(reason=str(error)))  # says nothing of memory that is still read here
            error = type(error)(f"{self.name}: {error}", peer=str(self.process))
        self._leave()
        try:
            self._tell_owner(error)
            if self._met:
                self._handler.ended(self, error)
        finally:
            self._sock.close()

    def _leave(self) -> None:
        self.flush()
        self._open = False
        self._timer.cancel()
        self._stop_writing()
        self._loop.remove_reader(self._sock.fileno())
        self._outbox.clear()
        self._tell_written()
        self._reader.close()

    def _tell_owner(self, error: Exception | None) -> None:
        if self._met:
            self._owner.gone(self, error)
        else:
            self._owner.settled(
                self, error or ConnectionError(f"{self.name} ended before its Hello")
            )


def descriptors(beside: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors in what ``recvmsg`` returned beside the bytes."""
    fds = array.array("i")
    for level, kind, data in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds.tolist()
