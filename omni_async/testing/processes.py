"""A real second process, led by a test.

In: orders. Out: results, errors as they were raised there, and what it wrote to stderr.
Never: leaves the process behind; pickles.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from . import faults
from .orders import Answer, Order, PeerError, PeerGone, Unpacker, pack
from .sides import RemoteSide


class PeerProcess:
    """One process with any number of transports. Used by one event loop at a time."""

    def __init__(self, loop: str = "asyncio") -> None:
        """Start it; ``loop`` is ``asyncio`` or ``uvloop``."""
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        command = [sys.executable, "-m", "omni_async.testing.peer", str(theirs.fileno()), loop]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=self._stderr
        )
        theirs.close()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._line = ours
        self._unpacker = Unpacker(Answer)
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._gone = False
        self.set_up: set[str] = set()
        """Connectors that were opened there."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._gone and self._process.poll() is None

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Within this block the running event loop hears the answers."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._line, self._hear)
        try:
            yield
        finally:
            loop.remove_reader(self._line)
            self._waiting.clear()

    async def call(self, do: str, name: str = "", /, **arguments: Any) -> Any:
        """Give an order and wait for its end.

        Raises:
            OmniAsyncError: as it was raised there.
            PeerError: anything else that was raised there.
            PeerGone: the process has ended.

        Cancellation: cancels the order there and waits for its end.
        """
        if self._gone:
            raise PeerGone(f"process {self.pid} has ended")
        number = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._say(Order(number, do, name, arguments))
        try:
            word = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._say(Order(next(self._ids), "cancel", "", {"number": number}))
            with contextlib.suppress(PeerGone):
                await answer
            raise
        if word.error is None:
            return word.result
        if word.error.kind == "CancelledError":
            raise PeerError("the order was cancelled there")
        raise word.error.error()

    async def open(self, name: str, connector: str, **options: Any) -> RemoteSide:
        """Open a transport there, with the options of ``open_transport``."""
        options.setdefault("extra", {})
        await self.call("open", name=name, connector=connector, **options)
        return RemoteSide(self, name)

    def _say(self, order: Order) -> None:
        with contextlib.suppress(ConnectionError):  # its end is heard by the reader
            self._line.sendall(pack(order))

    def _hear(self) -> None:
        try:
            data = self._line.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._end()
            return
        for word in self._unpacker.feed(data):
            waiting = self._waiting.pop(word.id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(word)

    def _end(self) -> None:
        self._gone = True
        with contextlib.suppress(RuntimeError):  # no loop: nobody listens
            asyncio.get_running_loop().remove_reader(self._line)
        error = PeerGone(f"process {self.pid} has ended; its stderr: {self.stderr()[-2000:]}")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # orders nobody waits for any more
        self._waiting.clear()

    def stderr(self) -> str:
        """Everything it has written so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def stop(self) -> None:
        """SIGSTOP; returns when it has stopped."""
        faults.stop(self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        faults.resume(self.pid)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._gone = True

    async def told(self) -> None:
        """(after its end) Wait until everybody who waits for an answer knows of that end."""
        while self._waiting:  # noqa: ASYNC110 - they are told by the loop's next look at the line
            await asyncio.sleep(0)

    def close(self) -> int:
        """End the line, wait for its end (killed after 5 s), and return its exit status."""
        self._line.close()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.resume()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._gone = True
        self._stderr.close()
        return self._process.returncode
