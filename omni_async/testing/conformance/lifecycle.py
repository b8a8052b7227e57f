"""Opening and closing, in every order, and calls that come at the wrong time or place."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

from ...errors import ClosedError, ConfigError, TransferCancelled, UsageError
from ..leaks import traces
from ..recipes import literal, pattern
from ..rig import Rig
from ..sides import LocalSide, Side, attempt
from .base import HERE, ONE_LOOP, RECEIVER_HERE, SENDER_HERE, Conformance, runs


class Lifecycle(Conformance):
    @runs(*ONE_LOOP)
    async def test_nothing_is_opened_before_entering(self, rig: Rig) -> None:
        rig.at("0")  # a port that is kept for it is the rig's
        before = {(trace.kind, trace.identity) for trace in traces(mark=rig.namespace)}
        openings = [rig.opening("sender", "0"), rig.opening("receiver", "1")]
        now = {(trace.kind, trace.identity) for trace in traces(mark=rig.namespace)}
        assert now <= before
        async with openings[0] as tx, openings[1] as rx:
            await tx.put("0", "1", "k", 1)
            assert (await rx.get("0", "1", "k")).value == 1

    @runs(*ONE_LOOP)
    async def test_entered_once_only(self, rig: Rig) -> None:
        opening = rig.opening("sender", "0")
        async with opening:
            with pytest.raises(UsageError):
                await opening.__aenter__()

    @pytest.mark.parametrize(
        "options",
        [
            {"role": "both"},
            {"stage": ""},
            {"stage": None},
            {"stage": True},
            {"namespace": ""},
            {"rank": -1},
            {"replica": "x"},
            {"linger": -1},
            {"linger": float("nan")},
        ],
        ids=repr,
    )
    @runs(*ONE_LOOP)
    async def test_arguments_that_make_no_sense(self, rig: Rig, options: dict[str, Any]) -> None:
        arguments: dict[str, Any] = {"role": "sender", "stage": "0"} | options
        with pytest.raises(UsageError) as caught:
            rig.opening(arguments.pop("role"), arguments.pop("stage"), **arguments)
        assert next(iter(options)) in str(caught.value)

    @runs(*ONE_LOOP)
    async def test_options_that_are_unknown_or_wrong(self, rig: Rig) -> None:
        for options in ({"memory_pol_size": 1}, {"memory_pool_size": "1"}, {"memory_pool_size": 0}):
            with pytest.raises(ConfigError, match=next(iter(options))):
                async with rig.opening("sender", "0", **options):
                    pass

    @runs(*HERE)
    async def test_closing_is_idempotent(self, rig: Rig) -> None:
        for first, second in (("close", "close"), ("abort", "close"), ("close", "abort")):
            tx, rx = await rig.pair()
            key = f"{first} {second}"
            await tx.put(key, pattern(100_000))
            assert (await rx.get(key, pattern(100_000))).wrong is None
            for side in (rx, tx):
                await getattr(side, first)()
                await getattr(side, second)()
                await side.leave()
                assert (await side.health()).status == "closed"

    @runs(*HERE)
    async def test_after_closing_every_call_says_so(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.close()
        await rx.close()
        for call in (
            tx.put("k", literal(1)),
            rx.get("k"),
            tx.cleanup("k"),
            rx.cleanup("k"),
            tx.drain(),
            tx.put_many({"k": literal(1)}),
        ):
            outcome = await attempt(call)
            if isinstance(outcome, dict):
                outcome = outcome["k"].error.error()
            assert isinstance(outcome, ClosedError), outcome

    @runs(*SENDER_HERE)
    async def test_allocating_after_closing(self, rig: Rig) -> None:
        tx = await rig.sender()
        assert isinstance(tx, LocalSide)
        await tx.close()
        with pytest.raises(ClosedError):
            await tx.transport.allocate(10)

    @runs(*HERE)
    async def test_the_wrong_role(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(await attempt(rx.put("k", literal(1))), UsageError)
        assert isinstance(await attempt(tx.get("k", timeout=1)), UsageError)

    @runs(*HERE)
    async def test_the_wrong_stage(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for edge in (("1", "0"), ("2", "1"), ("", "1")):
            assert isinstance(await attempt(tx.put("k", literal(1), edge=edge)), UsageError)
        for edge in (("1", "0"), ("0", "2")):
            assert isinstance(await attempt(rx.get("k", edge=edge, timeout=1)), UsageError)

    @runs(*ONE_LOOP)
    async def test_stages_are_text_or_numbers(self, rig: Rig) -> None:
        async with rig.opening("sender", 0) as tx, rig.opening("receiver", 1) as rx:  # type: ignore[arg-type]
            await tx.put(0, "1", "k", "v")
            assert (await rx.get("0", 1, "k")).value == "v"
            for stage in (True, 1.0, None, ""):
                with pytest.raises(UsageError):
                    await tx.put(0, stage, "k", "v")

    @runs(*SENDER_HERE)
    async def test_arguments_of_put_that_make_no_sense(self, rig: Rig) -> None:
        tx = await rig.sender()
        assert isinstance(tx, LocalSide)
        put = tx.transport.put
        wrong: list[dict[str, Any]] = [
            {"consumers": 0},
            {"consumers": 1.5},
            {"consumers": True},
            {"request_id": ""},
            {"request_id": 5},
            {"timeout": -1},
            {"timeout": "30"},
            {"timeout": float("nan")},
            {"timeout": True},
        ]
        for options in wrong:
            with pytest.raises(UsageError, match=next(iter(options))):
                await put("0", "1", "k", 1, **options)

    @runs(*RECEIVER_HERE)
    async def test_arguments_of_get_that_make_no_sense(self, rig: Rig) -> None:
        rx = await rig.receiver()
        assert isinstance(rx, LocalSide)
        wrong: list[dict[str, Any]] = [
            {"timeout": -1},
            {"timeout": "30"},
            {"timeout": float("nan")},
            {"timeout": False},
            {"metadata": "here"},
        ]
        for options in wrong:
            with pytest.raises(UsageError, match=next(iter(options))):
                await rx.transport.get("0", "1", "k", **options)

    @runs(*HERE)
    async def test_a_second_sender_on_one_endpoint_is_refused(self, rig: Rig) -> None:
        tx = await rig.sender()
        assert isinstance(await attempt(rig.sender()), UsageError)
        other = await rig.sender(rank=1)
        third = await rig.sender(replica=1)
        for side in (other, third, tx):
            await side.close()
        again, rx = await rig.pair()
        await again.put("k", literal(2))
        assert (await rx.get("k", literal(2))).wrong is None

    @runs(*HERE)
    async def test_opened_and_closed_many_times(self, rig: Rig) -> None:
        for turn in range(10):
            tx, rx = await rig.pair()
            await tx.put("k", literal(turn))
            assert (await rx.get("k", literal(turn))).wrong is None
            await tx.close()
            await rx.close()

    @runs(*HERE)
    async def test_the_receiver_starts_first(self, rig: Rig) -> None:
        rx = await rig.receiver()
        waiting = asyncio.ensure_future(rx.get("k", pattern(200_000)))
        await until_parked(rx, 1)
        tx = await rig.sender()
        await tx.put("k", pattern(200_000))
        assert (await waiting).wrong is None

    @runs(*HERE)
    async def test_the_sender_starts_first_and_is_alone_for_a_while(self, rig: Rig) -> None:
        tx = await rig.sender()
        for number in range(5):
            await tx.put(f"k{number}", pattern(50_000, number))
        rx = await rig.receiver()
        for number in reversed(range(5)):
            assert (await rx.get(f"k{number}", pattern(50_000, number))).wrong is None

    @runs(*HERE)
    async def test_a_sender_that_was_closed_and_opened_again_is_found(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("first", literal(1))
        assert (await rx.get("first", literal(1))).wrong is None
        waiting = asyncio.ensure_future(rx.get("second", literal(2)))
        await until_parked(rx, 1)
        await tx.close()
        tx = await rig.sender()
        await tx.put("second", literal(2))
        assert (await waiting).wrong is None

    @pytest.mark.parametrize("how", ["close", "abort"])
    @runs(*HERE)
    async def test_closing_wakes_who_waits_here(self, rig: Rig, how: str) -> None:
        tx, rx = await rig.narrow_pair()
        nbytes = rig.room * 6 // 7
        await tx.put("fills", pattern(nbytes))
        for side, call in (
            (rx, rx.get("never", timeout=None)),
            (tx, tx.put("blocked", pattern(nbytes), timeout=None)),
        ):
            waiting = asyncio.ensure_future(attempt(call))
            await _has_begun(side, waiting)
            await end(side, how)
            outcome = await asyncio.wait_for(waiting, 5)
            assert isinstance(outcome, (ClosedError, TransferCancelled)), outcome
        if rig.stored:  # there it still is, and perhaps what was being put
            again = await rig.narrow_receiver()
            assert (await again.get("fills", pattern(nbytes))).wrong is None
            await attempt(again.get("blocked", timeout=0.2))

    @runs(*ONE_LOOP)
    async def test_an_exception_inside_the_block_does_not_linger(self, rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        opening = rig.opening("sender", "0", linger=20.0)
        tx = await opening.__aenter__()
        await tx.put("0", "1", "k", 1)
        await opening.__aexit__(RuntimeError, RuntimeError("mine"), None)
        assert loop.time() - began < 5
        assert tx.closed

    @runs(*ONE_LOOP)
    async def test_closing_that_is_cancelled_goes_on_to_its_end(self, rig: Rig) -> None:
        for linger in (0.0, 20.0):
            opening = rig.opening("sender", "0", linger=linger)
            tx = await opening.__aenter__()
            await tx.put("0", "1", "k", 1)
            closing = asyncio.ensure_future(opening.__aexit__(None, None, None))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait({closing})
            assert tx.closed
            assert closing.cancelled() or not linger


async def end(side: Side, how: str) -> None:
    """``close`` or ``abort``."""
    with warnings.catch_warnings():
        if how == "abort":  # nothing is waited for, so an engine may still use a slot
            warnings.simplefilter("ignore", ResourceWarning)
        await getattr(side, how)()


async def until_parked(side: Side, count: int) -> None:
    """Wait until that many operations wait at this side."""
    for _ in range(2000):
        if (await side.health()).parked == count:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{await side.health()} never had {count} parked")


async def until_waited(rig: Rig, tx: Side, rx: Side, count: int) -> None:
    """Wait until that many gets wait, and the sender knows of them where it is told at all."""
    await until_parked(tx if rig.facts.notifies else rx, count)


async def _has_begun(side: Side, waiting: asyncio.Future[Any]) -> None:
    if isinstance(side, LocalSide) and side.transport.role == "sender":
        await asyncio.sleep(0.02)  # waiters of the pool are no gauge
    elif isinstance(side, LocalSide) or "receiver" in getattr(side, "name", ""):
        await until_parked(side, 1)
    else:
        await asyncio.sleep(0.1)
    assert not waiting.done(), waiting
