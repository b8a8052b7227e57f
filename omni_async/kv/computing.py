"""Layers that a model tells to be ready, from any thread, and those that its device still computes.

In: layers of sessions, events. Out: the same to the core, on the loop.
Never: blocks the model or the loop; tells a layer before its event has come; lets one session's event hold up
what else blocks, or another session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from .._aio.executor import OwnedExecutor
from .._aio.tasks import spawn
from ..errors import ClosedError
from .given import State
from .giving import Giving
from .session import KVSession
from .told import Event
from .words import Reason

EVENTS = 32
"""Events that are waited for at once, each of another session. A thread each, which does nothing but wait."""


class Computing:
    """Of one producer.

    Args:
        flush: called after the core was told something.
    """

    def __init__(self, core: Giving, flush: Callable[[], None]) -> None:
        self._executor = OwnedExecutor("omni-async-kv-events", EVENTS)
        self._core = core
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: dict[KVSession, deque[tuple[int, Event]]] = {}
        """Of each session, what is waited for, in the order in which it was told."""
        self._waits: set[asyncio.Future[BaseException | None]] = set()

    def ready(self, session: KVSession, layer: int, event: Event | None) -> None:
        """See :meth:`KVSession.layer_ready`; from any thread. It was told to :attr:`KVSession.told`."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._told(session, layer, event)
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._told, session, layer, event)

    def come(self, event: Event) -> asyncio.Future[BaseException | None]:
        """When an event has come; what it raised, if it did. ClosedError when the producer is closed.

        Whoever waits no more may cancel it, or set its result: its thread goes on waiting.

        Raises:
            ClosedError: the producer was closed.
        """
        wait = self._executor.run(_problem_of, event)
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)
        return wait

    def close(self) -> None:
        """Nobody needs to know any more. Events that do not come keep their threads, which hold up nothing."""
        self._executor.close()
        for wait in self._waits:
            if not wait.done():
                wait.set_exception(ClosedError("the producer was closed"))

    def _told(self, session: KVSession, layer: int, event: Event | None) -> None:
        if event is None:
            self._core.ready(session.core, [layer])
            self._taken(session, layer)
        elif session in self._lines:
            self._lines[session].append((layer, event))
        else:
            self._lines[session] = deque([(layer, event)])
            spawn(self._in_order(session), self._tasks)

    async def _in_order(self, session: KVSession) -> None:
        line = self._lines[session]
        try:
            while line:
                layer, event = line[0]
                problem = await self.come(event)
                del line[0]
                if problem is None:
                    self._core.ready(session.core, [layer])
                else:
                    text = f"layer {layer} was not computed: {problem!r}"
                    self._core.fail(session.core, Reason.ENGINE, text)
                self._taken(session, layer)
                if session.core.state > State.DELIVERED:
                    break  # those behind it are awaited by nobody
        except ClosedError:
            pass  # so is each session
        finally:
            del self._lines[session]

    def _taken(self, session: KVSession, layer: int) -> None:
        session.told.taken(layer)
        session.stir()
        self._flush()


def _problem_of(event: Event) -> BaseException | None:
    """Block until an event has come. Whatever it raises is told to consumers, and ends no thread or loop."""
    try:
        event.synchronize()
    except BaseException as error:  # noqa: BLE001 - see above
        return error
    return None
