"""Ends of KV transfers belong to one loop; layers may be told to be ready from any thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import omni_async
from tests.ends import Ends
from tests.kv.pairs import SOURCE, TARGET, Gate, joined, pair, until


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
                session.delivered(),
                session.delivered(timeout=1),
                session.asked_for(),
                progress.all(),
                progress.all(timeout=1),
                progress.layer(0),
                progress.released(),
                producer.aclose(),
                consumer.aclose(),
            ):
                with pytest.raises(omni_async.UsageError, match="another event loop"):
                    await asyncio.wait_for(wrong, 5)

        def calls() -> None:
            asyncio.run(elsewhere())
            wrong: list[Any] = [
                session.abort,
                progress.cancel,
                lambda: producer.abort("x"),
                lambda: consumer.decline("x"),
                lambda: consumer.leave(0),
                lambda: session.assign([1]),
            ]
            for call in wrong:
                with pytest.raises(omni_async.UsageError):
                    call()

        await asyncio.wait_for(asyncio.to_thread(calls), 30)
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


@pytest.mark.parametrize("with_event", [True, False])
async def test_a_seal_does_not_overtake_what_another_thread_has_told(
    where: Ends, with_event: bool
) -> None:
    source, target = pair({}, {})
    gate = Gate()
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)

        def forward() -> None:
            for layer in reversed(range(3)):
                session.layer_ready(layer, gate if with_event else None)

        model = threading.Thread(target=forward)
        model.start()
        model.join()  # on the loop: nothing that was told has reached it
        sealing = asyncio.ensure_future(session.seal())
        if with_event:
            await asyncio.sleep(0.1)
            assert (sealing.done(), session.state, progress.landed) == (False, "open", 0)
            gate.come.set()
        await asyncio.wait_for(sealing, 5)
        assert list(session.core.ready) == [2, 1, 0]
        await progress.all(timeout=5)
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
        with pytest.raises(omni_async.UsageError, match="was sealed"):
            await asyncio.to_thread(session.layer_ready, 0)


async def test_an_event_that_ends_its_thread_fails_the_session(where: Ends) -> None:
    class Exits:
        def synchronize(self) -> None:
            raise SystemExit(3)

    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0, Exits())
        session.layer_ready(1, Exits())
        for wait in (session.seal(), session.delivered(), progress.all(timeout=5)):
            with pytest.raises(omni_async.EngineFault, match=r"layer 0 .* SystemExit"):
                await asyncio.wait_for(wait, 5)
        await until(lambda: not producer.computing._tasks)
        assert not producer.computing._lines


async def test_events_of_one_session_hold_up_nothing_else(written: Ends) -> None:
    """Not other sessions, nor what is copied in threads: these blocks are gathered."""
    source, target = pair({}, {})
    gate = Gate()
    async with joined(written, source, target) as (producer, consumer):
        progress = await consumer.receive("held", [0, 1, 4, 5])
        held = await producer.write_to("held", [0, 2, 4, 5])
        for layer in range(3):
            held.layer_ready(layer, gate)
        for number in range(3):
            other = await consumer.receive(f"r{number}", TARGET)
            session = await producer.write_to(f"r{number}", SOURCE)
            come = Gate()
            come.come.set()
            for layer in range(3):
                session.layer_ready(layer, come)
            await asyncio.wait_for(session.seal(), 5)
            await other.all(timeout=5)
            assert not target.wrong(1, TARGET, source.layout, SOURCE)
        assert len(gate.threads) == 1
        assert progress.landed == 0
        gate.come.set()
        await asyncio.wait_for(held.seal(), 5)
        await progress.all(timeout=5)


async def test_who_gives_up_a_session_is_told_of_events_that_had_not_come(written: Ends) -> None:
    source, target = pair({}, {})
    gate = Gate()
    async with joined(written, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(1)
        session.layer_ready(2, gate)
        session.layer_ready(0, gate)
        progress.cancel("it took too long")
        for wait in (session.seal(), session.delivered()):
            with pytest.raises(omni_async.TransferCancelled, match=r"had not come: 2, 0$"):
                await asyncio.wait_for(wait, 5)
        session.layer_ready(0)  # it has failed, and that was told
        gate.come.set()
        await until(lambda: not producer.computing._tasks)


async def test_each_layer_is_told_once(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0)
        with pytest.raises(omni_async.UsageError, match="layer 0 was told before"):
            session.layer_ready(0)
        with pytest.raises(omni_async.UsageError, match="synchronize"):
            session.layer_ready(1, object())  # type: ignore[arg-type]
        session.layer_ready(1)
        await session.seal()
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        offered = await producer.offer("o", SOURCE)
        for over in (session, offered):
            with pytest.raises(omni_async.UsageError, match="was sealed"):
                over.layer_ready(2)
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


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
