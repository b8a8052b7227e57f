"""Ends of KV transfers belong to one loop; layers may be told to be ready from any thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import omni_async
from tests.ends import Ends
from tests.kv.pairs import SOURCE, TARGET, joined, pair


async def test_calls_from_elsewhere_are_refused(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)

        async def elsewhere() -> None:
            for wrong in (
                producer.offer("x", SOURCE),
                producer.write_to("x", SOURCE),
                consumer.receive("x", [0]),
                session.seal(),
            ):
                with pytest.raises(omni_async.UsageError, match="another event loop"):
                    await wrong

        def calls() -> None:
            asyncio.run(elsewhere())
            wrong: list[Any] = [
                session.abort,
                progress.cancel,
                lambda: producer.abort("x"),
                lambda: consumer.decline("x"),
                lambda: session.assign([1]),
            ]
            for call in wrong:
                with pytest.raises(omni_async.UsageError):
                    call()

        await asyncio.to_thread(calls)
        assert list(producer.core.sessions) == ["r"]
        assert not progress.error


async def test_layers_may_be_told_from_any_thread_with_events_that_fail(where: Ends) -> None:
    source, target = pair({}, {})

    class Broken:
        def synchronize(self) -> None:
            raise RuntimeError("the device fell off")

    class Later:
        def __init__(self) -> None:
            self.event = threading.Event()

        def synchronize(self) -> None:
            self.event.wait(5)

    async with joined(where, source, target) as (producer, consumer):
        later = Later()
        progress = await consumer.receive("good", TARGET)
        session = await producer.write_to("good", SOURCE)
        await asyncio.to_thread(session.layer_ready, 0, later)
        sealing = asyncio.ensure_future(session.seal())
        await asyncio.sleep(0.05)
        assert not sealing.done()
        assert progress.landed == 0
        later.event.set()
        await sealing
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        progress = await consumer.receive("bad", TARGET)
        session = await producer.write_to("bad", SOURCE)
        await asyncio.to_thread(session.layer_ready, 0, Broken())
        with pytest.raises(omni_async.EngineFault, match="fell off"):
            await progress.all(timeout=5)
        with pytest.raises(omni_async.EngineFault, match="fell off"):
            await session.seal()
        await progress.released(timeout=5)


async def test_an_event_that_never_comes_does_not_hold_up_closing(written: Ends) -> None:
    source, target = pair({}, {})
    stuck = threading.Event()

    class Never:
        def synchronize(self) -> None:
            stuck.wait(20)

    async with joined(written, source, target) as (producer, consumer):
        await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0, Never())
        sealing = asyncio.ensure_future(session.seal())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(producer.aclose(), 3)
        with pytest.raises(omni_async.OmniAsyncError):
            await asyncio.wait_for(sealing, 3)
        await asyncio.sleep(0)
        assert not producer.computing._tasks
    stuck.set()
