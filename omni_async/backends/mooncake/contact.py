"""Contact: one peer's engine, and whether the way to it is sound.

In: what the peer told of its engine. Out: the peer known to our engine, and no dead connection in the way.
Never: waits on the event loop, writes anything that a peer keeps, repeats a payload's write.

A payload's write is never repeated: after a failure, bytes of the first attempt may still lie in the peer's
kernel, and land after the second has ended well. So the way is tried beforehand with single bytes for the
peer's scratch page, where it does not matter, whenever it may be broken: after a failed write, which
costs the vendor's engine a connection, and after a pause, in which a router may have forgotten some.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from ..._aio.completion_watch import CompletionWatch
from ..._aio.executor import OwnedExecutor
from ...errors import EngineFault, ProtocolError
from ._native import NAME, NativeEngine, Write

PAUSE = 5.0
"""Seconds without a write after which the way is tried again."""
OPENING = 2.0
"""Seconds that a peer, which has just answered, may take to tell of itself; others wait for it."""
OPENINGS = 3
"""How often it is asked to."""
ROUNDS = 4
"""How often it is tried. The engine opens a lost connection again at the next write, or a second later."""
AT_ONCE = 256
"""Writes of an operation that are under way together. The engine fails what exceeds its queue for a peer, which
all operations share and which has room for about two thousand; to start one takes the loop some microseconds, and
the engine 30 of them to carry one, however small, so 256 keep it busy for longer than it is left alone."""


class EngineWord(msgspec.Struct, frozen=True):
    """What an engine tells of itself in the handshake."""

    session: str
    page: int = 0
    """A page of it that takes bytes nobody keeps."""


_decoder = msgspec.json.Decoder(EngineWord)


def read_word(descriptor: bytes) -> EngineWord:
    """What a peer told: our own word, or just a session ``host:port``.

    Raises:
        ProtocolError: neither.
    """
    try:
        if descriptor.startswith(b"{"):
            return _decoder.decode(descriptor)
        host, _, port = descriptor.decode("ascii").rpartition(":")
    except (msgspec.DecodeError, UnicodeDecodeError):
        host = port = ""
    if not host or not port.isdigit():
        raise ProtocolError(f"the peer's engine is told as {descriptor[:80]!r}")
    return EngineWord(f"{host}:{port}")


Target = tuple[int, int, int]
"""One write: address here, address at the peer, bytes."""


class Batch:
    """Writes that belong together; it ends with the last of them. Begins the first :data:`AT_ONCE`."""

    __slots__ = ("_contact", "_left", "_rest", "failure")

    def __init__(self, contact: Contact, targets: Sequence[Target]) -> None:
        self._contact = contact
        self._rest = deque(targets)
        self._left: deque[Write] = deque()
        self.failure: int | str | None = None
        """Status of one that went wrong; no more are begun after it."""
        self._begin()

    def ended(self) -> bool:
        """Asks about one that has not ended: all of them have to. Begins more as others end."""
        left, contact = self._left, self._contact
        while left and left[0].ended():
            write = left.popleft()
            if write.failed:
                self.failure = write.status
        if self._rest and contact.closed:
            self.failure = self.failure or "closed"
        if self.failure is not None:
            self._rest.clear()
        elif self._rest and not contact.native.waits:
            self._begin()
        return not left and not self._rest

    def _begin(self) -> None:
        rest, left, contact = self._rest, self._left, self._contact
        while rest and len(left) < AT_ONCE:
            left.append(contact.native.submit(contact.session, *rest.popleft()))


class Contact:
    """One peer of one transport.

    Args:
        executor: for writes that have to wait before they start.
    """

    def __init__(
        self,
        native: NativeEngine,
        watch: CompletionWatch,
        executor: OwnedExecutor,
        word: EngineWord,
    ) -> None:
        self.native = native
        self._watch = watch
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._word = word
        self._sound = False
        self._used = 0.0
        self._task: asyncio.Task[None] | None = None
        self.closed = False
        """Nothing of an operation is begun any more."""

    @property
    def session(self) -> str:
        return self._word.session

    @property
    def ready(self) -> bool:
        """Whether a payload may be written now."""
        return self._sound and self._loop.time() - self._used < PAUSE

    def prepare(self) -> asyncio.Task[None]:
        """Begin to get ready, unless that is under way."""
        if self._task is None:
            self._task = self._loop.create_task(self._prepare())
            self._task.add_done_callback(self._prepared)
        return self._task

    async def wait_ready(self) -> None:
        """Get ready, once for all who wait.

        Raises:
            EngineFault: the peer's engine does not answer, or takes no writes.

        Cancellation: safe; the others wait on.
        """
        task = self.prepare()
        await asyncio.wait([task])
        if task.cancelled():
            raise EngineFault("the transport was closed", status="closed", backend=NAME)
        task.result()

    async def write(self, targets: Sequence[Target]) -> None:
        """Write to a peer that is ready; returns when all bytes are in place.

        Raises:
            EngineFault: some are not; all writes have ended nevertheless.

        Cancellation: the writes go on unwatched.
        """
        if self.native.waits:
            batch = await self._executor.run(self._begin, targets)
        else:
            batch = self._begin(targets)
        await self._watch.until(batch.ended)
        self._used = self._loop.time()
        if batch.failure is not None:
            self._sound = False
            raise EngineFault(
                f"the engine could not write {sum(nbytes for _, _, nbytes in targets):,} bytes to "
                f"{self.session} (status {batch.failure}); MC_LOG_LEVEL=WARNING shows its own words",
                status=batch.failure,
                backend=NAME,
                peer=self.session,
            )

    def close(self) -> None:
        """Whoever waits is told.

        The vendor keeps its connections to a peer that has gone, until a write runs into their end: here
        it does.
        """
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        native = self.native
        if self._word.page and native.knows(self.session) and not native.waits:
            self._watch.until(self._begin(self._lanes()).ended)

    def _lanes(self) -> list[Target]:
        """One byte for each connection, to where it does not matter."""
        return [(self.native.page, self._word.page, 1)] * self.native.lanes

    def _begin(self, targets: Sequence[Target]) -> Batch:
        return Batch(self, targets)

    def _prepared(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # often nobody waits for it

    async def _prepare(self) -> None:
        if not self.native.knows(self.session):
            await self._open()
        if self._word.page and not await self._tried():
            raise EngineFault(
                f"the peer's engine at {self.session} takes no writes",
                status=-1,
                backend=NAME,
                peer=self.session,
            )
        self._sound = True
        self._used = self._loop.time()

    async def _open(self) -> None:
        # A thread for this peer alone: one that is stopped keeps it for a minute.
        executor = OwnedExecutor(f"mooncake-{self.session}", 1)
        native, session = self.native, self.session
        try:
            for _ in range(OPENINGS):
                await executor.run(native.reach, session)
                timer = self._loop.call_later(OPENING, native.cut, session)
                try:
                    write = await executor.run(native.open, session, self._word.page)
                finally:
                    timer.cancel()
                if native.knows(session):
                    await self._watch.until(write.ended)
                    return
        finally:
            executor.close()
        raise EngineFault(
            f"the peer's engine at {session} does not tell of itself",
            status="unknown",
            backend=NAME,
            peer=session,
        )

    async def _tried(self) -> bool:
        """Whether bytes get through on all connections."""
        for _ in range(ROUNDS):
            try:
                await self.write(self._lanes())
            except EngineFault:
                continue
            return True
        return False
