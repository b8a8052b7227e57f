"""A transport belongs to one loop of one process, and says so to everybody else."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from ...errors import UsageError
from ..rig import Rig
from .base import ONE_LOOP, Conformance, runs


class Threads(Conformance):
    @runs(*ONE_LOOP)
    async def test_another_loop_is_refused(self, rig: Rig) -> None:
        async with rig.opening("sender", "0") as tx, rig.opening("receiver", "1") as rx:
            for name, call in _calls(tx, rx).items():
                outcome = await _in_thread(functools.partial(_run, call))
                assert isinstance(outcome, UsageError), name
            await tx.put("0", "1", "k", 1)
            assert (await rx.get("0", "1", "k")).value == 1

    @runs(*ONE_LOOP)
    async def test_no_loop_is_refused(self, rig: Rig) -> None:
        async with rig.opening("sender", "0") as tx, rig.opening("receiver", "1") as rx:
            for name, call in _calls(tx, rx).items():
                outcome = await _in_thread(functools.partial(_step, call))
                assert isinstance(outcome, UsageError), name
            assert isinstance(await _in_thread(tx.abort), UsageError)
            assert not tx.closed

    @runs(*ONE_LOOP)
    async def test_a_forked_child_is_refused_and_harms_nobody(self, rig: Rig) -> None:
        async with rig.opening("sender", "0") as tx, rig.opening("receiver", "1") as rx:
            await tx.put("0", "1", "held", bytearray(100_000))
            delivery = await rx.get("0", "1", "held")
            await tx.put("0", "1", "k", bytearray(100_000))
            calls = _calls(tx, rx)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
                pid = os.fork()
            if not pid:
                _child(calls, delivery)
            _, status = os.waitpid(pid, 0)  # noqa: ASYNC222 - it needs nothing of this loop
            assert os.waitstatus_to_exitcode(status) == 0
            del delivery
            assert (await rx.get("0", "1", "k")).value == bytearray(100_000)

    @runs(*ONE_LOOP)
    async def test_a_transport_that_was_forgotten_warns(self, rig: Rig) -> None:
        """Its owner never closed it: said by name, never repaired in silence."""
        opening = rig.opening("receiver", "1")
        rx = await opening.__aenter__()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rx.__del__()
        assert any(
            issubclass(w.category, ResourceWarning) and "receiver" in str(w.message) for w in caught
        )
        await rx.aclose()


def _calls(tx: Any, rx: Any) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    return {
        "put": lambda: tx.put("0", "1", "other", 1),
        "get": lambda: rx.get("0", "1", "other", timeout=0),
        "allocate": lambda: tx.allocate(10),
        "cleanup": lambda: tx.cleanup("other"),
        "drain": lambda: tx.drain(0),
        "aclose": lambda: tx.aclose(),
    }


async def _in_thread(call: Callable[[], Any]) -> Any:
    """The error a call raises in a thread of its own, or its result."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except UsageError as error:
            outcome.append(error)
        finally:
            loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=run)
    thread.start()
    await done.wait()
    thread.join()
    return outcome[0] if outcome else None


def _run(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in a loop of this thread."""
    return asyncio.run(call())


def _step(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine to its first suspension, without a loop."""
    coroutine = call()
    try:
        return coroutine.send(None)
    except StopIteration as end:
        return end.value
    finally:
        coroutine.close()


def _child(calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]], delivery: Any) -> None:
    """Everything is refused here, and what dies here frees nothing there."""
    status = 1
    try:
        delivery.release()
        refused = 0
        for call in calls.values():
            try:
                _step(call)
            except UsageError:
                refused += 1
        status = 0 if refused == len(calls) else 2
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)
