"""A process that does as a test orders: ``python -m omni_async.testing.peer FD LOOP``.

In: orders on a socket. Out: answers, in the order in which they are ready.
Never: acts by itself; outlives its parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import OmniAsyncError
from ..registry import register_backend
from ..transport import open_transport
from .leaks import Trace, freeze_old_objects, left, nothing, traces
from .orders import Answer, ErrorWord, Order, Unpacker, error_word, pack
from .recipes import Recipe
from .sides import METHODS, LocalSide

_PR_SET_PDEATHSIG = 1


class Peer:
    """Sides by name, and the orders that are being carried out."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._sides: dict[str, LocalSide] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._before: list[Trace] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        unpacker = Unpacker(Order)
        while data := await loop.sock_recv(self._line, 1 << 16):
            for order in unpacker.feed(data):
                task = loop.create_task(self._carry_out(order))
                self._running[order.id] = task
                task.add_done_callback(functools.partial(self._ended, order.id))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._running[number]

    async def _carry_out(self, order: Order) -> None:
        try:
            answer = Answer(order.id, await self._do(order))
        except OmniAsyncError as error:
            answer = Answer(order.id, error=error_word(error))
        except asyncio.CancelledError:
            answer = Answer(order.id, error=ErrorWord("CancelledError", ""))
        except Exception as error:  # noqa: BLE001 - raised again in the process that gave the order
            answer = Answer(order.id, error=error_word(error, traceback.format_exc()))
        await asyncio.get_running_loop().sock_sendall(self._line, pack(answer))

    async def _do(self, order: Order) -> Any:
        if not order.name:
            own = getattr(self, f"do_{order.do}")
            return await own(**order.arguments)
        if order.do not in METHODS:
            raise ValueError(f"no side can {order.do}")
        method = getattr(self._sides[order.name], order.do)
        return await method(**_typed(order.arguments))

    async def do_open(
        self, name: str, connector: str, extra: dict[str, Any], target: str = "", **options: Any
    ) -> None:
        """Open a transport; ``target`` is a backend class that is not shipped."""
        if target:
            register(target)
        opening = open_transport({"name": connector, "extra": extra}, **options)
        self._sides[name] = LocalSide(await opening.__aenter__())

    async def do_drop(self, name: str) -> None:
        """Forget a side that was closed."""
        self._sides.pop(name, None)

    async def do_cancel(self, number: int) -> None:
        """Cancel an order; it is answered all the same."""
        task = self._running.get(number)
        if task is not None:
            task.cancel()

    async def do_watch(self) -> None:
        """From now on nothing is to be left behind."""
        freeze_old_objects()
        self._before = traces()

    async def do_leaks(self, grace: float, kept: str = "") -> list[str]:
        """What is left since :meth:`do_watch`; ``kept`` names what tells what a vendor keeps."""
        predicate = named(kept) if kept else nothing
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while found := [t for t in left(self._before, kept=predicate) if not self._own(t)]:
            if loop.time() > deadline:
                return [f"{trace.kind} {trace.name}" for trace in found]
            await asyncio.sleep(0.01)
        return []

    def _own(self, trace: Trace) -> bool:
        return trace.kind == "task" and trace.identity in [
            id(task) for task in self._running.values()
        ]

    async def do_use(self, target: str, side: str = "", **arguments: Any) -> Any:
        """Await a coroutine function of any module: ``"package.module:name"``.

        With ``side`` its first argument is that :class:`~omni_async.testing.sides.LocalSide`.
        """
        first = [self._sides[side]] if side else []
        return await named(target)(*first, **arguments)


def named(target: str) -> Callable[..., Any]:
    """What ``"package.module:name"`` says."""
    module, _, attribute = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def register(target: str) -> None:
    """Make a backend class known here."""
    register_backend(named(target)())


def _typed(arguments: dict[str, Any]) -> dict[str, Any]:
    typed = dict(arguments)
    for name in ("recipe", "want"):
        if isinstance(typed.get(name), dict):
            one = "kind" in typed[name] and "arguments" in typed[name]
            typed[name] = msgspec.convert(typed[name], Recipe if one else dict[str, Recipe])
    if "values" in typed:
        typed["values"] = msgspec.convert(typed["values"], dict[str, Recipe])
    if "edge" in typed:
        typed["edge"] = tuple(typed["edge"])
    return typed


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """An event loop of ``asyncio`` or ``uvloop``."""
    if kind == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def main(fd: int, kind: str) -> None:
    """Carry out orders until the line ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test that was interrupted ends us
    line = socket.socket(fileno=fd)
    line.setblocking(False)
    loop = new_loop(kind)
    try:
        loop.run_until_complete(Peer(line).run())
    finally:
        loop.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what a test left running is not waited for
