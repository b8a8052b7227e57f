"""Layers that a model tells to be ready, from any thread, and those that its device still computes.

In: layers of sessions, events. Out: the same to the core, on the loop.
Never: blocks the model or the loop; tells a layer before its event has come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from .._aio.executor import OwnedExecutor
from .._aio.tasks import spawn
from .giving import Giving
from .session import Event, KVSession
from .words import Reason


class Computing:
    """Of one producer.

    Args:
        flush: called after the core was told something.
    """

    def __init__(self, executor: OwnedExecutor, core: Giving, flush: Callable[[], None]) -> None:
        self._executor = executor
        self._core = core
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def ready(self, session: KVSession, layer: int, event: Event | None) -> None:
        """See :meth:`KVSession.layer_ready`; from any thread."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._told(session, layer, event)
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._told, session, layer, event)

    def close(self) -> None:
        """Nobody needs to know any more."""
        for task in self._tasks:
            task.cancel()

    def _told(self, session: KVSession, layer: int, event: Event | None) -> None:
        if event is None:
            self._core.ready(session.core, [layer])
            self._flush()
            return
        session.coming(1)
        spawn(self._after(session, layer, event), self._tasks)

    async def _after(self, session: KVSession, layer: int, event: Event) -> None:
        try:
            await self._executor.run(event.synchronize)
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumers are told of it
            text = f"layer {layer} was not computed: {error!r}"
            self._core.fail(session.core, Reason.ENGINE, text)
        else:
            self._core.ready(session.core, [layer])
        session.coming(-1)
        self._flush()
