"""The client's process: the vendor's client, apart from the event loop that it would hold up.

In: words from a socket, memory of the pool. Out: answers; bytes copied between the pool and the worker's memory.
Never: outlives the process that started it, writes where it was not told to.

The vendor's client never lets go of the GIL, so a second thread that calls it would only wait for the first: one
thread does all calls, one step of each in turn. What takes long and is not the vendor's, the copying of much,
is done by other threads meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Generator

from ._native import Client, Refused
from .copiers import Copiers, Copy, memmove
from .mapped import Memory
from .words import (
    Answer,
    Call,
    Connect,
    Contains,
    Delete,
    Done,
    Failed,
    Frames,
    Get,
    Map,
    Put,
    Told,
    Unmap,
    framed,
    questions,
)

_LITTLE = 1 << 20
"""Bytes that are copied on the spot."""
_READ = 1 << 18
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_LEAVING = 1.0
"""Seconds to take leave of the worker."""
_DIES_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG``."""

Job = Generator[list[Copy], None, Answer]
"""One call: what it yields is to be copied before it goes on."""


class ClientProcess:
    """The process's one loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = Frames()
        self._fds: deque[int] = deque()
        self._memory = Memory()
        self._copiers = Copiers()
        self._client: Client | None = None
        self._ready: deque[_Call] = deque()
        self._copying: dict[_Call, int] = {}
        """Pieces that are not copied yet."""
        self._open = True

    def run(self) -> None:
        """Until the other end is closed."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._copiers.fd, select.POLLIN)
        while self._open:
            for fd, _ in poll.poll(0 if self._ready else None):
                if fd == self._copiers.fd:
                    self._copied()
                else:
                    self._read()
            if self._ready:
                self._step(self._ready.popleft())

    def close(self) -> None:
        """Give the worker back what is held of its memory, and take leave of it."""
        for call in [*self._ready, *self._copying]:
            call.job.close()
        self._client = None

    def _read(self) -> None:
        try:
            # socket.recv_fds() passes no flags on.
            data, beside, _, _ = self._sock.recvmsg(_READ, socket.CMSG_SPACE(64), _FLAGS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, beside = b"", []
        for _, _, rights in beside:
            self._fds.extend(memoryview(rights).cast("i"))
        self._open = bool(data)
        for frame in self._frames.cut(data):
            word = questions.decode(frame)
            if isinstance(word, Map):
                self._memory.map(word.address, word.nbytes, self._fds.popleft())
            elif isinstance(word, Unmap):
                self._memory.unmap(word.address)
            elif isinstance(word, Connect):
                self._connect(word)
            else:
                assert self._client is not None, "the first word is Connect"
                job = _job(word, self._client, self._memory)
                self._ready.append(_Call(word.id, job))

    def _connect(self, word: Connect) -> None:
        try:
            client = Client(word.host, word.port, word.req_timeout_ms, word.evictable)
            client.connect(word.deadline)
        except Refused as error:
            self._answer(_failed(0, error))
            self._open = False
        else:
            self._client = client
            self._answer(Done(0))

    def _step(self, call: _Call, trouble: Refused | None = None) -> None:
        """Let a call go on to where it copies, or to its end."""
        try:
            copies = call.job.throw(trouble) if trouble is not None else next(call.job)
        except StopIteration as end:
            self._answer(end.value)
        except Refused as error:
            self._answer(_failed(call.id, error))
            if error.kind == "silent" and trouble is None:
                self._all_silent(error)
        else:
            self._copying[call] = self._copiers.begin(copies, call)

    def _all_silent(self, error: Refused) -> None:
        """Who has come while that call waited for a worker in vain has waited as well. Were they to try
        one after another, the last would wait for many time limits."""
        self._read()
        waiting = list(self._ready)
        self._ready.clear()
        for call in waiting:
            self._step(call, error)

    def _copied(self) -> None:
        for token in self._copiers.ended():
            assert isinstance(token, _Call)
            self._copying[token] -= 1
            if not self._copying[token]:
                del self._copying[token]
                self._ready.append(token)

    def _answer(self, word: Answer) -> None:
        try:
            self._sock.sendall(framed(word))
        except OSError:
            self._open = False


class _Call:
    __slots__ = ("id", "job")

    def __init__(self, number: int, job: Job) -> None:
        self.id = number
        self.job = job


def _job(word: Call, client: Client, memory: Memory) -> Job:
    """The steps of a call. Each ``yield`` is answered once the copies are done."""
    if isinstance(word, Put):
        return _put(word, client, memory)
    if isinstance(word, Get):
        return _get(word, client, memory)
    return _ask(word, client)


def _put(word: Put, client: Client, memory: Memory) -> Job:
    _in_time(word.deadline)
    spans = [memory.span(address, nbytes) for address, nbytes in word.pieces]
    total = sum(len(span.data) for span in spans)
    if len(spans) == 1:
        client.put(word.name, spans[0].data, word.ttl, word.deadline)
    elif total <= _LITTLE:
        joined = memoryview(b"".join(span.data for span in spans))
        client.put(word.name, joined, word.ttl, word.deadline)
    else:
        created, buffer = client.create(word.name, total, word.ttl, word.deadline)
        try:
            to = buffer.address
            copies = []
            for span in spans:
                copies.append((to, span.address, len(span.data)))
                to += len(span.data)
            yield copies
            client.publish(word.name, created)
        finally:
            buffer.release()
    return Done(word.id)


def _get(word: Get, client: Client, memory: Memory) -> Job:
    _in_time(word.deadline)
    span = memory.span(word.address, word.room)
    buffer = client.get(word.name)
    if buffer is None:
        return Done(word.id, -1)
    try:
        nbytes = buffer.nbytes
        if nbytes <= _LITTLE and nbytes <= word.room:
            memmove(span.address, buffer.address, nbytes)
        elif nbytes <= word.room:
            yield [(span.address, buffer.address, nbytes)]
    finally:
        buffer.release()
    return Done(word.id, nbytes)


def _ask(word: Contains | Delete, client: Client) -> Job:
    yield from ()
    if isinstance(word, Contains):
        return Told(word.id, client.contains(word.names))
    stay = set(client.delete(word.names))
    return Told(word.id, bytes(name in stay for name in word.names))


def _in_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise Refused("fault", "its time was over before the client came to it", "deadline")


def _failed(number: int, error: Refused) -> Failed:
    return Failed(number, error.kind, error.text, error.status, error.nbytes, error.limit)


def main() -> None:
    # The socket says when it is over. Signals that a terminal or a service sends to all processes are for
    # the process that uses this one, and may well make it put something.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    # In case that somebody else holds the other end of the socket.
    signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit())
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGUSR1)
    process = ClientProcess(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(SystemExit):
        process.run()
    # A vendor's client whose worker is gone takes minutes to see that. The kernel does not wait for it.
    signal.setitimer(signal.ITIMER_REAL, _LEAVING)
    process.close()
    os._exit(0)  # nobody waits for the vendor's threads


if __name__ == "__main__":
    main()
