"""Line: the client's process as the event loop sees it.

In: words. Out: answers, or the error that the process or the worker met.
Never: blocks the event loop, leaves the process behind.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections import deque

from ..._aio.fork import close_in_child
from ...errors import EngineFault
from .words import MODULE, Answer, Frames, Question, answers, framed

NAME = "YuanrongConnector"
ENDED = "client ended"
"""Status of the faults of calls whose process has ended under them."""
_READ = 1 << 18
_SEND_BUFFER = 1 << 20
_GRACE = 0.4
"""Seconds for what a process still has to answer, and for one that was killed to be gone."""


class ClientLine:
    """One process, from its start to its end. Made and used on the event loop.

    The kernel ends the process when the *thread* ends that started it, which is the event loop's.

    Args:
        patience: seconds without an answer after which a process that owes one is killed.

    Raises:
        OSError: the system does not start a process.
    """

    def __init__(self, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._numbers = itertools.count(1)
        self._owed: dict[int, asyncio.Future[Answer]] = {}
        self._frames = Frames()
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._writing = False
        self._watch: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._retired = False
        self._why = "it has ended by itself, or was killed; what it had to say is on stderr"
        self._exit: asyncio.Future[None] = self._loop.create_future()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", MODULE, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=_environment(),
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        close_in_child(ours)
        self._sock = ours
        self._loop.add_reader(ours.fileno(), self._readable)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def open(self) -> bool:
        """Whether it can be told anything."""
        return self._sock.fileno() >= 0

    @property
    def gone(self) -> bool:
        """The process has ended."""
        return self._exit.done()

    def be_patient(self, patience: float) -> None:
        """Change that of the beginning."""
        self._patience = patience
        if self._watch is not None:
            self._watch.cancel()
            self._overdue()

    def number(self) -> int:
        """For the next call."""
        return next(self._numbers)

    def tell(self, word: Question, fd: int = -1) -> None:
        """Say something that is not answered. The descriptor is duplicated."""
        if self.open:
            self._out.append((memoryview(framed(word)), [os.dup(fd)] if fd >= 0 else []))
            if not self._writing:
                self._write()

    def ask(self, number: int, word: Question) -> asyncio.Future[Answer]:
        """Say something; the answer to that number, or :class:`EngineFault` once the process is no more.

        So whoever has an answer, or this fault, knows that his memory is not used any longer.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if not self._owed:
            self._heard = self._loop.time()
        self._owed[number] = future
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience, self._overdue)
        self.tell(word)
        return future

    def retire(self) -> None:
        """Kill it once it owes no answer, or soon. The vendor's client takes long to give up its worker."""
        if not self._retired:
            self._retired = True
            self._loop.call_later(_GRACE if self._owed else 0, self._kill)

    async def close(self, within: float) -> None:
        """Let it end by itself; after ``within`` seconds it is killed. Idempotent."""
        self._hang_up("it was closed")
        if not self.gone:
            await asyncio.wait([self._exit], timeout=within)
        if not self.gone:
            self._process.kill()
            await asyncio.wait([self._exit], timeout=_GRACE)

    def abort(self) -> None:
        """Kill it, and wait for the moments that takes. Idempotent."""
        self._hang_up("it was closed")
        self._process.kill()
        self._exited()

    # -- the socket ------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            while self._out:
                data, fds = self._out[0]
                sent = socket.send_fds(self._sock, [data], fds) if fds else self._sock.send(data)
                _close(fds)
                if sent == len(data):
                    self._out.popleft()
                else:
                    self._out[0] = data[sent:], []
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError:  # its end is about to be read
            self._drop()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _drop(self) -> None:
        for _, fds in self._out:
            _close(fds)
        self._out.clear()

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            # A thread of it may still be copying, so nobody is told before it is gone.
            self._process.kill()
            self._hang_up(self._why)
            return
        self._heard = self._loop.time()
        for frame in self._frames.cut(data):
            word = answers.decode(frame)
            future = self._owed.pop(word.id, None)
            if future is not None and not future.done():
                future.set_result(word)
        if self._retired and not self._owed:
            self._kill()

    def _kill(self) -> None:
        if not self.gone:
            self._process.kill()
            self._hang_up("it was given up, for its worker did not answer")

    def _overdue(self) -> None:
        self._watch = None
        if self.open:
            self._readable()  # a loop that was held up has not heard yet what was said
        if self._owed:
            left = self._heard + self._patience - self._loop.time()
            if left > 0:
                self._watch = self._loop.call_later(left, self._overdue)
            else:
                self._process.kill()
                self._hang_up(f"it has not answered for {self._patience:g} s, and was killed")

    # -- the end ---------------------------------------------------------------------------------

    def _hang_up(self, why: str) -> None:
        """Close the socket, which is how the process is told to end."""
        if self.open:
            self._why = why
            self._loop.remove_reader(self._sock.fileno())
            if self._writing:
                self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._drop()

    def _exited(self) -> None:
        """It has ended, or was killed and is about to."""
        if self._exit.done():
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._exit.set_result(None)
        while self.open:
            self._readable()  # what it said last
        if self._watch is not None:
            self._watch.cancel()
        owed, self._owed = self._owed, {}
        for future in owed.values():
            if not future.done():
                error = EngineFault(
                    f"the client's process: {self._why}", status=ENDED, backend=NAME
                )
                future.set_exception(error)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _environment() -> dict[str, str]:
    """Ours, and that modules are to be found where this process finds them."""
    path = [os.path.abspath(entry) for entry in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
