"""OwnedExecutor: threads that belong to one resource, for calls that block.

In: blocking functions. Out: futures of the event loop that asked.
Never: uses the loop's default executor, holds up the interpreter's exit, waits for a stuck call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..errors import ClosedError, UsageError
from .finish import finish_all
from .fork import generation

P = ParamSpec("P")
T = TypeVar("T")


def default_threads() -> int:
    """All cores this process may run on but one, which stays with the event loop; at least one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


class _Job:
    """One call. Who takes the claim decides: a thread runs it, or the loop withdraws it."""

    __slots__ = ("again", "args", "call", "claim", "future", "kwargs", "loop")

    def __init__(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], again: bool
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.call = call
        self.args = args
        self.kwargs = kwargs
        self.again = again
        """Call it until it returns ``False``."""
        self.claim = threading.Lock()

    def tell(self, result: Any, error: BaseException | None) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(_settle, self.future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # a future refuses it
        future.set_exception(RuntimeError(f"the call raised {error!r}"))
    else:
        future.set_exception(error)


class OwnedExecutor:
    """At most ``limit`` daemon threads, started when there is work for them.

    Args:
        name: begins the names of the threads.
        threads: how many calls run at once; :func:`default_threads` by default.
    """

    def __init__(self, name: str, threads: int | None = None) -> None:
        self.name = name
        self.limit = default_threads() if threads is None else threads
        if self.limit < 1:
            raise ValueError(f"an executor needs at least one thread, not {threads}")
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._under_way = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._generation = generation()

    @property
    def started(self) -> int:
        """Threads that were started so far."""
        return len(self._threads)

    def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a call in a thread. Cancelling the future abandons the call, which may still run.

        Raises:
            ClosedError: the executor is closed.
            UsageError: this is a forked child, and the threads are its parent's.
        """
        return self._submit(_Job(call, args, kwargs, False)).future

    def run_steps(self, step: Callable[[], bool]) -> asyncio.Future[None]:
        """Call ``step`` in a thread until it returns ``False``; others get their turn in between."""
        return self._submit(_Job(step, (), {}, True)).future

    async def finish(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in a thread and wait for its end, also when cancelled.

        A call that has not begun when the caller is cancelled is withdrawn.

        Raises:
            ClosedError: the executor is closed, or was before the call had begun.
            UsageError: this is a forked child, and the threads are its parent's.
            BaseException: what the call raised.

        Cancellation: ends after the call has ended.
        """
        job = self._submit(_Job(call, args, kwargs, False))

        def withdraw() -> None:
            if job.claim.acquire(blocking=False):
                job.future.cancel()

        await finish_all((job.future,), withdraw)
        result: T = job.future.result()
        return result

    def _submit(self, job: _Job) -> _Job:
        if self._generation != generation():
            raise UsageError(f"{self.name}: a forked child cannot use the threads of its parent")
        if self._closed:
            raise ClosedError(f"{self.name} is closed")
        with self._lock:
            self._under_way += 1
            short = self._under_way > len(self._threads) < self.limit
        self._jobs.put(job)
        if short:
            thread = threading.Thread(
                target=self._work, name=f"{self.name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return job

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.claim.acquire(blocking=False) and not self._do(job):
                continue
            with self._lock:
                self._under_way -= 1
            del job  # what the call was given is not to live until the next one

    def _do(self, job: _Job) -> bool:
        """Run a job that was claimed; ``False`` when it went back into the line."""
        try:
            result = job.call(*job.args, **job.kwargs)
            while job.again and result:
                if not self._jobs.empty() and not self._closed:
                    job.claim.release()
                    self._jobs.put(job)
                    return False
                result = job.call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's, whatever it is
            job.tell(None, error)
        else:
            job.tell(None if job.again else result, None)
        return True

    def close(self) -> None:
        """Refuse new calls, fail those that have not begun, let threads end. Idempotent.

        Does not wait: a call that is stuck keeps its daemon thread.
        """
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None and job.claim.acquire(blocking=False):
                    job.tell(None, ClosedError(f"{self.name} was closed before the call began"))
        for _ in self._threads:
            self._jobs.put(None)
