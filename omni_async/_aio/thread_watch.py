"""ThreadWatch: learns of the end of operations that move on only while somebody asks about them.

In: operations, which can be begun and asked whether they are over. Out: futures of the event loop, one for several.
Never: asks from the event loop, asks after an operation's end, runs at all while nothing is under way.

Short operations go before long ones, with a limit: each may be overtaken by so many times its own length.

An operation that moves its bytes inside the question is asked about without a pause for as long as it
may reasonably take, and then at intervals that grow with its age: whoever waits for a peer that stands
still costs next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from .asking import pause, settle
from .executor import OwnedExecutor

P = ParamSpec("P")
T = TypeVar("T")

LONGEST = 2e-3
"""Seconds an operation is left alone at most."""
OVERTAKEN = 8
"""Times its own length that may go before an operation though it came later: short ones next to never wait for
more than the one that is at work, and long ones get through beside them."""


class Operation(Protocol):
    """All calls come from the thread; each may raise, and is the last one then."""

    @property
    def length(self) -> int:
        """Of what it does, such as bytes, in comparison to others."""
        ...

    @property
    def eager(self) -> float:
        """Seconds in which it is asked about without a pause."""
        ...

    def prepare(self) -> None:
        """Whatever need not wait for those before it, and takes microseconds."""

    def start(self) -> None:
        """Begin; may block for as long as the whole operation takes."""

    def over(self) -> bool:
        """Whether it has ended; not asked again after that."""
        ...


class _Wait:
    """Somebody waits for the end of operations."""

    __slots__ = ("error", "future", "left", "loop")

    def __init__(self, count: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.left = count
        """Operations that have not ended; the thread counts them."""
        self.error: BaseException | None = None
        """The first one's."""


class _Job:
    """An operation under way."""

    __slots__ = ("began", "ended", "operation", "wait")

    def __init__(self, operation: Operation, wait: _Wait) -> None:
        self.operation = operation
        self.wait = wait
        self.began = 0.0
        self.ended = False

    def prepare(self) -> bool:
        """Whether it may be started; not where another of the same wait has failed."""
        if self.wait.error is None:
            self._do(self.operation.prepare)
        else:
            self.ended = True
        return not self.ended

    def start(self) -> None:
        self.began = time.monotonic()
        self._do(self.operation.start)
        if not self.ended:
            self.over()

    def over(self) -> bool:
        self._do(self.operation.over)
        return self.ended

    def _do(self, step: Callable[[], bool | None]) -> None:
        try:
            self.ended = bool(step())
        except BaseException as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            self.ended, self.wait.error = True, self.wait.error or error


class ThreadWatch:
    """All operations of one owner, in one thread that is started when there is work.

    Args:
        name: begins the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._executor = OwnedExecutor(name, 1)
        self._new: queue.PriorityQueue[tuple[int, int, _Job]] = queue.PriorityQueue()
        """When their turn is, as a length that went before; in which order they came."""
        self._order = itertools.count()
        self._went = 0
        """Length of all that began; the thread counts it."""
        self._under_way: list[_Job] = []
        self._count = 0
        self._asking: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Waits that have not ended, as far as the event loop knows."""
        return self._count

    def begin(self, *operations: Operation) -> asyncio.Future[None]:
        """Begin operations in the thread; done at the end of all, or failed then with what was raised first.

        Those that have not begun when another fails are left out.

        Cancelling the future abandons the wait only: the operations are asked about to their ends.

        Raises:
            ClosedError: the watch is closed.
        """
        wait = _Wait(len(operations))
        for one in operations:
            turn = self._went + OVERTAKEN * one.length
            self._new.put((turn, next(self._order), _Job(one, wait)))
        if self._asking is None:
            self._ask()
        self._count += 1
        return wait.future

    def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a call in the same thread, between questions.

        Raises:
            ClosedError: the watch is closed.
        """
        return self._executor.run(call, *args, **kwargs)

    def close(self, abort: Callable[[], None], end: Callable[[], None]) -> None:
        """End the thread. Only once.

        Args:
            abort: called in the thread, ends what is under way; that is asked about once more then.
            end: called in the thread after that.
        """
        self._executor.run(self._finish, abort, end)

    def _ask(self) -> None:
        self._asking = self._executor.run_steps(self._step)
        self._asking.add_done_callback(self._asked)

    def _asked(self, asking: asyncio.Future[None]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None and not self._new.empty():
            self._ask()

    def _settle(self, wait: _Wait) -> None:
        self._count -= 1
        settle(wait.future, wait.error)

    # in the thread

    def _step(self) -> bool:
        job = self._next(self._pause())
        while job is not None:
            job.start()
            # Prepared before the end of this one is told: the loop that hears of it takes the interpreter
            # for a while, and the engine would stand still. What moves its bytes in its start is over now.
            following = self._next()
            if job.ended:
                self._tell(job)
            else:
                self._under_way.append(job)
            job = following
        for one in self._under_way:
            if one.over():
                self._tell(one)
        self._under_way = [one for one in self._under_way if not one.ended]
        return bool(self._under_way)

    def _next(self, patience: float = 0.0) -> _Job | None:
        """One that is ready to be started."""
        with contextlib.suppress(queue.Empty):
            job = self._take(patience)
            while not job.prepare():
                self._tell(job)
                job = self._take()
            return job
        return None

    def _take(self, patience: float = 0.0) -> _Job:
        _, _, job = self._new.get(timeout=patience) if patience else self._new.get_nowait()
        self._went += job.operation.length
        return job

    def _pause(self) -> float:
        """Seconds until one of the operations is to be asked about."""
        now = time.monotonic()
        pauses = (
            0.0 if now - one.began < one.operation.eager else pause(now - one.began, LONGEST)
            for one in self._under_way
        )
        return min(pauses, default=0.0)

    def _tell(self, job: _Job) -> None:
        wait = job.wait
        wait.left -= 1
        if not wait.left:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                wait.loop.call_soon_threadsafe(self._settle, wait)

    def _finish(self, abort: Callable[[], None], end: Callable[[], None]) -> None:
        try:
            abort()
            self._step()
            end()
        finally:
            self._under_way.clear()
            self._executor.close()
