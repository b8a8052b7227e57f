"""ZMQ listener: one ROUTER for all receivers of a sender.

In: a bound socket. Out: lines whose peer has said a ``Hello`` that fits; requests of strangers.
Never: is disturbed by who connects and says nothing, nonsense, or leaves.

A ROUTER knows its peers by routing ids, its monitor knows connections by descriptors. A ``Hello`` tells
which belong together, for libzmq notes on a message which descriptor it came from.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress

import zmq

from .._aio.fork import close_in_child_by_number
from ..abc import ChannelHandler, Listener
from ..errors import ProtocolError
from ..observe.log import get_logger
from .handshake import Disagreement, disagreement, first_word
from .messages import Bye, Hello
from .turned_line import LineOptions
from .zmq_address import HostPort
from .zmq_context import LAST_WORDS
from .zmq_line import ZmqLine
from .zmq_monitor import ACCEPTED, BROKEN, DISCONNECTED, FORBIDDEN, Monitor
from .zmq_sockets import Frames, ReadySocket
from .zmq_stranger import ZmqStranger
from .zmq_words import END, Words, packed
from .zmq_zap import Gate

_log = get_logger("omni_async.rendezvous")

_SOURCE = int(zmq.SRCFD)
_HELLO_LIMIT = 64 << 10
"""Bytes of the first word; who has not said it is not worth more."""
_LOOK_AGAIN = 0.1
"""Seconds between two looks for connections that are over, where the socket is never empty."""
_SPARE = 64


class _Connection:
    """What is known of one descriptor."""

    __slots__ = ("post", "spoke")

    def __init__(self) -> None:
        self.spoke = False
        self.post: RouterPost | None = None


class RouterPost:
    """Sends to one routing id."""

    __slots__ = ("_listener", "line", "routing_id", "seen")

    def __init__(self, listener: ZmqListener, routing_id: bytes) -> None:
        self._listener = listener
        self.routing_id = routing_id
        self.line: ZmqLine | None = None
        """``None`` when it is over, and its connection is not."""
        self.seen = 0
        """Which of the listener's messages was the last from here."""

    def put(self, body: bytes | bytearray) -> bool:
        return self._listener.put(self.routing_id, body)

    def look(self) -> None:
        self._listener.look()

    def wait(self) -> None:
        self._listener.wait()

    def go_on(self) -> None:
        self._listener.go_on()

    def gone(self, line: ZmqLine, error: Exception | None) -> None:
        self.line = None
        self._listener.line_gone()


class ZmqListener(Listener):
    """Accepts until closed. Lines outlive it, and until the last of them has ended the port stays bound:
    libzmq cannot give up the one without the others."""

    def __init__(
        self,
        router: zmq.Socket[bytes],
        where: HostPort,
        hello: Hello,
        handler: ChannelHandler,
        options: LineOptions,
        gate: Gate | None = None,
    ) -> None:
        self.address = str(where)
        self.host, self.port = where
        self.dropped = 0
        """Connections that never became a channel, and messages that nobody understood."""
        self.last_drop: Exception | None = None
        self._hello = hello
        self._handler = handler
        self._options = options
        self._router = router
        self._gate = gate
        self._accepting = True
        self._lines = 0
        self._posts: dict[bytes, RouterPost] = {}
        self._connections: dict[int, _Connection] = {}
        self._leaving: list[RouterPost] = []
        """Their connections are over; what they said last may still lie in the socket."""
        self._messages = 0
        self._detail = ""
        self._loop = asyncio.get_running_loop()
        context = None if gate is None else gate.context
        self._monitor = Monitor(router, self._happened, self.port, context)
        try:
            self._ready = ReadySocket(router, self._heard, self._dry)
        except BaseException:
            self._monitor.close()
            raise

    def bind(self, sock: socket.socket) -> None:
        """Begin to listen, with a socket that is bound already and is libzmq's from here on."""
        self._router.set(zmq.USE_FD, sock.fileno())
        self._router.bind(
            f"tcp://127.0.0.1:{self.port}"
        )  # said for the form: where it is bound stands
        close_in_child_by_number(sock.detach())

    # -- for posts -------------------------------------------------------------------------------

    def put(self, routing_id: bytes, body: bytes | bytearray) -> bool:
        """Raises: ConnectionResetError: there is no such peer any more."""
        try:
            self._ready.send((routing_id, body))
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno not in (errno.EHOSTUNREACH, errno.ENOTSOCK):
                raise
            raise ConnectionResetError("its connection is gone") from None
        return True

    def look(self) -> None:
        self._ready.look()

    def wait(self) -> None:
        self._ready.busy = True

    def go_on(self) -> None:
        self._ready.resume()

    def line_gone(self) -> None:
        self._lines -= 1
        self._shut_if_over()

    # -- messages --------------------------------------------------------------------------------

    def _heard(self, frames: Frames) -> None:
        routing_id = frames[0].bytes
        post = self._posts.get(routing_id)
        self._messages += 1
        if post is None:
            self._unknown(routing_id, frames)
            return
        post.seen = self._messages
        if post.line is None:
            pass  # it has been told that its line is over, and does not know yet
        elif len(frames) == 2:
            self._ready.taken += post.line.take(frames[1].buffer)
        else:
            post.line.broken(f"a message of {len(frames) - 1} parts came on a line")

    def _unknown(self, routing_id: bytes, frames: Frames) -> None:
        self._monitor.look()  # its connection was made before it spoke
        number = _descriptor(frames[-1])
        connection = self._connections.get(number)
        if connection is not None:
            connection.spoke = True
        who = _from(frames[-1])
        if len(frames) > 2:
            self._stranger(who, frames)
            return
        body = frames[1].buffer
        if not body:  # the end of a line that never was: it changed its mind
            return
        try:
            theirs = self._hello_of(body)
        except ProtocolError as error:
            self._drop(type(error)(f"{who}: {error}", peer=who))
            if isinstance(error, Disagreement):
                self._refuse(routing_id, str(error))
            return
        if not self._accepting:
            self._refuse(routing_id, None)
        elif connection is not None:
            self._admit(routing_id, connection, f"{who} (process {theirs.pid})", theirs)

    def _hello_of(self, body: memoryview) -> Hello:
        if len(body) > _HELLO_LIMIT:
            raise ProtocolError(f"its first message has {len(body)} bytes and cannot be a Hello")
        word = Words(body, _HELLO_LIMIT).next()
        assert word is not None
        theirs = first_word(word, self._hello.role)
        reason = disagreement(self._hello, theirs)
        if reason is not None:
            raise Disagreement(reason)
        return theirs

    def _admit(self, routing_id: bytes, connection: _Connection, name: str, theirs: Hello) -> None:
        if connection.post is not None:  # a new connection under an old one's number
            self._over(connection.post)
        post = RouterPost(self, routing_id)
        try:
            self.put(routing_id, packed(self._hello))
        except ConnectionError:
            return
        post.line = ZmqLine(post, name, theirs, self._handler, self._options)
        connection.post = self._posts[routing_id] = post
        self._lines += 1
        post.line.open()

    def _refuse(self, routing_id: bytes, reason: str | None) -> None:
        with suppress(ConnectionError):
            if reason is not None:
                self.put(routing_id, packed(Bye(reason)))
            self.put(routing_id, END)

    def _stranger(self, who: str, frames: Frames) -> None:
        """Before an empty frame stands where an answer goes to, behind it what is asked."""
        empty = next((at for at, frame in enumerate(frames) if at and not len(frame)), 0)
        if not empty or len(frames) != empty + 2:
            parts = len(frames) - 1
            self._drop(ProtocolError(f"{who}: a message of {parts} parts came", peer=who))
        elif self.on_stranger is None or not self._accepting:
            self._drop(ProtocolError(f"{who}: a request of another wire came", peer=who))
        else:
            route = [frame.bytes for frame in frames[: empty + 1]]
            self.on_stranger(ZmqStranger(self._ready, route, frames[-1].bytes, who))

    # -- connections -----------------------------------------------------------------------------

    def _happened(self, event: int, value: int) -> None:
        if event == ACCEPTED:
            self._connections[value] = _Connection()
        elif event == BROKEN:
            self._detail = f"it does not speak ZeroMQ as this sender does ({value:#x})"
        elif event == FORBIDDEN:
            self._detail = "its key is not allowed"
        elif event == DISCONNECTED:
            connection = self._connections.pop(value, None)
            if connection is None:
                return
            if connection.post is not None:
                self._over(connection.post)
            elif not connection.spoke:
                if self._detail:
                    self._drop(ProtocolError(self._detail))
                else:
                    self._drop(ConnectionError("a connection ended without a word to be read"))
            self._detail = ""

    def _over(self, post: RouterPost) -> None:
        """End its line, once everything that it said has been handed over."""
        post.seen = self._messages
        if not self._leaving:
            self._loop.call_later(_LOOK_AGAIN, self._look_for_leaving)
        self._leaving.append(post)
        self._ready.look_soon()

    def _dry(self) -> None:
        leaving, self._leaving = self._leaving, []
        for post in leaving:
            self._forget(post)

    def _look_for_leaving(self) -> None:
        """Who still has something to say gets its turn once in each round."""
        round = len(self._connections) + _SPARE
        leaving = self._leaving
        self._leaving = [post for post in leaving if self._messages - post.seen <= round]
        if self._leaving and self._ready.open:
            self._loop.call_later(_LOOK_AGAIN, self._look_for_leaving)
        for post in leaving:
            if self._messages - post.seen > round:
                self._forget(post)

    def _forget(self, post: RouterPost) -> None:
        del self._posts[post.routing_id]
        if post.line is not None:
            post.line.lost(None)

    def _drop(self, error: Exception) -> None:
        self.dropped += 1
        if isinstance(error, ProtocolError) and str(error) != str(self.last_drop):
            _log.warning("message refused", reason=str(error))
        self.last_drop = error

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop accepting; lines that stand stay. Idempotent."""
        self._accepting = False
        self._shut_if_over()

    def _shut_if_over(self) -> None:
        if not self._accepting and not self._lines and self._ready.open:
            self._monitor.close()
            self._ready.close(LAST_WORDS)
            if self._gate is not None:
                self._gate.close()


def _descriptor(frame: zmq.Frame) -> int:
    """Which connection a message came over; -1 where libzmq does not know any more."""
    try:
        return int(frame.get(_SOURCE))
    except zmq.ZMQError:
        return -1


def _from(frame: zmq.Frame) -> str:
    """For people: the address that a message came from."""
    try:
        host = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        host = "unknown"
    return f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
