"""What a test leaves behind, by name.

In: a moment before and a moment after. Out: the things that are there now and were not before.
Never: closes or repairs anything, imports pytest.

Kinds: tasks and timers of the running loop, Python threads, file descriptors, mapped memory files,
child processes, entries of ``/dev/shm`` and of folders that are named, abstract sockets that carry
the given mark. Leases are counted by the transport itself: see :func:`quiet`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from ..model import Health

SHM = Path("/dev/shm")

MANY = 10_000
"""Objects that make a collection take 5 ms."""


class Trace(NamedTuple):
    """One thing that exists: ``name`` tells it to a person, ``kind`` and ``identity`` to a set."""

    kind: str
    identity: object
    name: str


class LeakError(AssertionError):
    """Something is left that was not there before. ``traces`` names it."""

    def __init__(self, message: str, traces: list[Trace]) -> None:
        super().__init__(message)
        self.traces = traces


class HasHealth(Protocol):
    """Anything with gauges: a transport."""

    def health(self) -> Health: ...


def traces(*, folders: Iterable[Path] = (), mark: str = "") -> list[Trace]:
    """Everything of this process that could be left behind, now.

    Args:
        folders: watched besides ``/dev/shm``, such as a ``socket_dir``.
        mark: abstract sockets of any process count when their name contains it.
    """
    found = [*_threads(), *_descriptors(), *_mappings(), *_children(), *_tasks(), *_timers()]
    for folder in (SHM, *folders):
        found += [Trace("file", str(path), str(path)) for path in _entries(folder)]
    if mark:
        found += _abstract_sockets(mark)
    return found


Kept = Callable[[Trace], bool]
"""Whether a trace is what a vendor's library keeps for the life of its process."""


def nothing(trace: Trace) -> bool:
    """Of :data:`Kept`, the usual one."""
    return False


def left(
    before: Iterable[Trace],
    *,
    folders: Iterable[Path] = (),
    mark: str = "",
    kept: Kept = nothing,
) -> list[Trace]:
    """What is there now, is not in ``before`` and is not ``kept``. Collects garbage first."""
    gc.collect()
    known = {(trace.kind, trace.identity) for trace in before}
    now = traces(folders=folders, mark=mark)
    new = [trace for trace in now if (trace.kind, trace.identity) not in known]
    return [trace for trace in new if not _foreign(trace) and not kept(trace)]


@contextlib.asynccontextmanager
async def no_leaks(
    *,
    folders: Iterable[Path] = (),
    mark: str = "",
    grace: float = 2.0,
    kept: Kept = nothing,
) -> AsyncIterator[None]:
    """Fail with :class:`LeakError` when the body leaves something behind after ``grace`` seconds.

    Cancellation: safe.
    """
    watched = tuple(folders)
    gc.collect()
    before = traces(folders=watched, mark=mark)
    yield
    deadline = time.monotonic() + grace
    pause = 0.001
    while leaks := left(before, folders=watched, mark=mark, kept=kept):
        if time.monotonic() > deadline:
            raise LeakError(_told("left behind", leaks), leaks)
        # a thread or a peer may be on its way out, and nothing tells when it is gone
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)


@contextlib.contextmanager
def no_leaks_blocking(
    *, folders: Iterable[Path] = (), mark: str = "", grace: float = 2.0
) -> Iterator[None]:
    """:func:`no_leaks` for code outside an event loop: around ``asyncio.run``, around processes."""
    watched = tuple(folders)
    gc.collect()
    before = traces(folders=watched, mark=mark)
    yield
    deadline = time.monotonic() + grace
    while leaks := left(before, folders=watched, mark=mark):
        if time.monotonic() > deadline:
            raise LeakError(_told("left behind", leaks), leaks)
        time.sleep(0.01)


async def quiet(
    transport: HasHealth,
    *,
    pool_used: int | None = 0,
    parked: int = 0,
    in_flight: int | None = 0,
    within: float = 2.0,
) -> Health:
    """Wait until nothing moves and nothing is held, then return that health.

    Args:
        pool_used: bytes that may stay in use; ``None`` for any number.
        parked: operations that are expected to wait.
        in_flight: operations that are expected to be under way; ``None`` for any number.
        within: seconds.

    Raises:
        LeakError: a gauge did not come down in time; says which.

    Cancellation: safe.
    """
    deadline = time.monotonic() + within
    pause = 0.001
    while True:
        health = transport.health()
        gauges = {
            "in_flight": (health.in_flight, in_flight),
            "parked": (health.parked, parked),
            "quarantined": (health.quarantined, 0),
            "pool_used": (health.pool_used, pool_used),
        }
        wrong = [
            Trace(gauge, gauge, f"{gauge} is {value}, should be {wanted}")
            for gauge, (value, wanted) in gauges.items()
            if wanted is not None and value != wanted
        ]
        if not wrong:
            return health
        if time.monotonic() > deadline:
            raise LeakError(_told(f"{health.backend} transport is not quiet", wrong), wrong)
        gc.collect()  # views in dropped cycles hold leases
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)


def freeze_old_objects() -> None:
    """Keep what is there for good out of all collections to come; torch alone has 150,000 objects.

    A collection after each test takes microseconds then, not a tenth of a second.
    """
    if len(gc.get_objects()) > MANY:
        gc.collect()
        gc.freeze()


def _told(what: str, leaks: list[Trace]) -> str:
    return f"{what}: " + "; ".join(f"{trace.kind} {trace.name}" for trace in leaks)


def _threads() -> list[Trace]:
    return [Trace("thread", id(thread), thread.name) for thread in threading.enumerate()]


def _links() -> Iterator[tuple[str, str]]:
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            yield number, os.readlink(f"/proc/self/fd/{number}")


def _descriptors() -> list[Trace]:
    return [Trace("descriptor", (fd, link), f"{fd} -> {link}") for fd, link in _links()]


def _mappings() -> list[Trace]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(("/memfd:", "/dev/shm/")):
            start = fields[0].split("-")[0]
            found.append(Trace("mapping", (start, fields[4]), f"{fields[5]} at {start}"))
    return found


def _children() -> list[Trace]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):
            listed = Path(f"/proc/self/task/{task}/children").read_text().split()
            found += [Trace("process", pid, pid) for pid in listed]
    return found


def _tasks() -> list[Trace]:
    try:
        current = asyncio.current_task()
    except RuntimeError:
        return []
    return [
        Trace("task", id(task), f"{task.get_name()} ({task.get_coro()!r})")
        for task in asyncio.all_tasks()
        if task is not current
    ]


def _timers() -> list[Trace]:
    try:
        now = asyncio.get_running_loop().time()
    except RuntimeError:
        return []
    return [
        Trace("timer", id(handle), repr(handle))
        for handle in gc.get_objects()
        if type(handle).__name__ == "TimerHandle"  # uvloop has its own class of that name
        and not handle.cancelled()
        and handle.when() > now
    ]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _abstract_sockets(mark: str) -> list[Trace]:
    found = []
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith("@") and mark in fields[7]:
            found.append(Trace("socket", (fields[6], fields[7]), fields[7]))
    return found


def _foreign(trace: Trace) -> bool:
    """A file that another living process has open or mapped is its business, not this test's."""
    if trace.kind != "file":
        return False
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            if trace.name in Path(f"/proc/{pid}/maps").read_text():
                return True
            links = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in links:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}") == trace.name:
                    return True
    return False
