"""ThreadWatch: learns of the end of operations that move on only while somebody asks about them.

In: functions that begin an operation and say whether it is over. Out: futures of the event loop.
Never: asks from the event loop, asks after an operation's end, runs at all while nothing is under way.

An operation that moves its bytes inside the question is asked about without a pause for as long as it
may reasonably take, and then at intervals that grow with its age: whoever waits for a peer that stands
still costs next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .asking import Over, pause, settle
from .executor import OwnedExecutor

P = ParamSpec("P")
T = TypeVar("T")

LONGEST = 2e-3
"""Seconds an operation is left alone at most."""


class _Operation:
    __slots__ = ("began", "eager", "future", "loop", "over", "start")

    def __init__(self, start: Callable[[], Over], eager: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.start = start
        self.eager = eager
        self.began = 0.0
        self.over: Over


class ThreadWatch:
    """All operations of one owner, in one thread that is started when there is work.

    Args:
        name: begins the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._executor = OwnedExecutor(name, 1)
        self._new: queue.SimpleQueue[_Operation] = queue.SimpleQueue()
        self._under_way: list[_Operation] = []
        self._count = 0
        self._asking: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Operations that have not ended, as far as the event loop knows."""
        return self._count

    def begin(self, start: Callable[[], Over], eager: float = 0.0) -> asyncio.Future[None]:
        """Begin an operation in the thread; done at its end, or failed with what was raised.

        Cancelling the future abandons the wait only: the operation is asked about to its end.

        Args:
            start: may block; what it returns says whether the operation is over.
            eager: seconds in which it is asked about without a pause.

        Raises:
            ClosedError: the watch is closed.
        """
        operation = _Operation(start, eager)
        self._new.put(operation)
        if self._asking is None:
            self._ask()
        self._count += 1
        return operation.future

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

    # in the thread

    def _step(self) -> bool:
        with contextlib.suppress(queue.Empty):
            seconds = self._pause()
            operation = self._new.get(timeout=seconds) if seconds else self._new.get_nowait()
            while True:
                # What moves its bytes in its start is over: whoever waits may begin the next meanwhile.
                if self._start(operation) and not self._ended(operation):
                    self._under_way.append(operation)
                operation = self._new.get_nowait()
        self._under_way = [one for one in self._under_way if not self._ended(one)]
        return bool(self._under_way)

    def _pause(self) -> float:
        """Seconds until one of the operations is to be asked about."""
        now = time.monotonic()
        pauses = (
            0.0 if now - one.began < one.eager else pause(now - one.began, LONGEST)
            for one in self._under_way
        )
        return min(pauses, default=0.0)

    def _start(self, operation: _Operation) -> bool:
        operation.began = time.monotonic()
        try:
            operation.over = operation.start()
        except BaseException as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            self._tell(operation, error)
            return False
        return True

    def _ended(self, operation: _Operation) -> bool:
        try:
            ended = operation.over()
        except BaseException as error:  # noqa: BLE001 - see above
            self._tell(operation, error)
            return True
        if ended:
            self._tell(operation, None)
        return ended

    def _tell(self, operation: _Operation, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            operation.loop.call_soon_threadsafe(self._settle, operation.future, error)

    def _settle(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        self._count -= 1
        settle(future, error)

    def _finish(self, abort: Callable[[], None], end: Callable[[], None]) -> None:
        try:
            abort()
            self._step()
            end()
        finally:
            self._under_way.clear()
            self._executor.close()
