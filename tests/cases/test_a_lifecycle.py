"""Life cycle of payloads: aborts, failures and a slow consumer leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

import omni_async
from tests.cases.memory_of import header_of
from tests.cases.processes import AgentError, Processes
from tests.cases.steps import CHAIN, Pair, block, until
from tests.pairs import open_pair

pytestmark = pytest.mark.usefixtures("shm_listing")


# --- A1: chunks of an aborted request stay for ever ----------------------------------------------


async def test_abort_at_the_producer_frees_what_was_put_and_nothing_else(pair: Pair) -> None:
    tx, rx = pair
    await tx.put("0", "1", "alive", block(7))
    alone = tx.health().pool_used
    for index in range(50):
        await tx.put("0", "1", f"r-{index}", block(index), request_id="r")
    for index in range(10):
        (await rx.get("0", "1", f"r-{index}", timeout=5)).release()
    waiting = asyncio.create_task(rx.get("0", "1", "r-not-put", timeout=5))
    await tx.cleanup("r")
    await until(lambda: tx.health().pool_used == alone, "the aborted request keeps memory")
    with pytest.raises(omni_async.KeyNotFound):
        await rx.get("0", "1", "r-20", timeout=0)
    delivery = await rx.get("0", "1", "alive", timeout=5)
    assert (delivery.value == 7).all()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_abort_at_the_consumer_frees_within_the_time_limit(
    backend: str, namespace: str
) -> None:
    async with open_pair(backend, namespace, buffer_ttl_seconds=1.0) as (tx, rx):
        for index in range(50):
            await tx.put("0", "1", f"r-{index}", block(index), request_id="r")
        for index in range(10):
            (await rx.get("0", "1", f"r-{index}", timeout=5)).release()
        waiting = asyncio.create_task(rx.get("0", "1", "r", timeout=20))
        await asyncio.sleep(0.5)  # half of the limit, so that the other request is half as old
        await rx.cleanup("r")
        with pytest.raises(omni_async.TransferCancelled):
            await waiting
        await tx.put("0", "1", "alive", block(7))
        delivery_due = time.monotonic() + 0.9
        await until(
            lambda: tx.health().pool_used < 300_000, "unread payloads outlive their time limit", 3
        )
        if time.monotonic() < delivery_due:  # else the machine slept through the other's limit too
            delivery = await rx.get("0", "1", "alive", timeout=5)
            assert (delivery.value == 7).all()
        with pytest.raises(omni_async.KeyNotFound) as caught:
            await rx.get("0", "1", "r-20", timeout=0)
        assert caught.value.expired


# --- A2: state of aborted requests grows ----------------------------------------------------------


async def test_a_thousand_aborts_leave_no_state(pair: Pair) -> None:
    tx, rx = pair
    small = b"x" * 200

    async def abort(number: int) -> None:
        for part in range(3):
            await tx.put("0", "1", f"{number}-{part}", small, request_id=f"r{number}")
        waiting = asyncio.create_task(rx.get("0", "1", f"{number}-never", timeout=30))
        await asyncio.sleep(0)  # it waits
        (await rx.get("0", "1", f"{number}-0", timeout=5)).release()
        await tx.cleanup(f"r{number}")
        await rx.cleanup(f"{number}-never")
        with pytest.raises(omni_async.TransferCancelled):
            await waiting

    tracemalloc.start()  # from the start: what replaces something of before is no growth
    for number in range(400):  # tables of bounded size are full
        await abort(number)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(400, 1600):
        await abort(number)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown / 1200 < 64, f"{grown / 1200:.0f} bytes stay for each aborted request"

    def idle() -> bool:
        return all(
            not (health.in_flight or health.parked or health.quarantined or health.pool_used)
            for health in (tx.health(), rx.health())
        )

    await until(idle, "state of aborted requests is kept")


# --- A3: side files of failed and of falsy values -------------------------------------------------


async def test_a_failed_put_leaves_nothing(pair: Pair) -> None:
    tx, rx = pair
    with pytest.raises(omni_async.EncodeError, match=r"value\['a'\]\[1\]"):
        await tx.put("0", "1", "k", {"a": [block(1), object()]})
    assert tx.health().pool_used == 0
    with pytest.raises(omni_async.KeyNotFound):
        await rx.get("0", "1", "k", timeout=0)


async def test_a_payload_that_was_corrupted_is_an_error_and_leaves_nothing(
    processes: Processes, namespace: str
) -> None:
    sender = await processes.agent("sender")
    async with omni_async.open_transport(
        "shm", role="receiver", stage="1", namespace=namespace
    ) as rx:
        await sender.do("put", key="bad", value={"needle-in-the-header": "x"}, nbytes=50_000)
        with header_of(sender.pid, b"needle-in-the-header") as (segment, place):
            segment[place - 8 : place + 20] = b"\xc1" * 28
        with pytest.raises(omni_async.DecodeError):
            await rx.get("0", "1", "bad", timeout=5)
        await sender.do("put", key="good", value={"fine": 1})
        assert (await rx.get("0", "1", "good", timeout=5)).value == {"fine": 1}
        # nobody can ever read it: it is not kept on offer for another try
        for _ in range(200):
            if (await sender.do("health"))["pool_used"] == 0:
                return
            await asyncio.sleep(0.01)
        pytest.fail("a payload that cannot be decoded is kept")


@pytest.mark.parametrize(
    "value", [{}, [], (), set(), b"", bytearray(), "", 0, 0.0, False, None], ids=repr
)
async def test_falsy_values_arrive(pair: Pair, value: Any) -> None:
    tx, rx = pair
    await tx.put("0", "1", "k", value)
    received = (await rx.get("0", "1", "k", timeout=5)).value
    assert type(received) is type(value)
    assert received == value
    await until(lambda: tx.health().pool_used == 0, "a falsy value keeps its memory")


# --- A4: a stage without a successor ---------------------------------------------------------------


async def test_the_last_stage_sends_nothing(namespace: str) -> None:
    deploy = omni_async.load_deploy(CHAIN)
    async with (
        omni_async.open_stage(deploy, 0, namespace=namespace) as first,
        omni_async.open_stage(deploy, 1, namespace=namespace) as last,
    ):
        await first.output(1).put("r", "text only")
        assert (await last.input(0).get("r", timeout=5)).value == "text only"
        assert list(last.outputs) == []
        assert all(health.pool_size == 0 or health.puts == 0 for health in last.health().values())
        with pytest.raises(omni_async.UsageError, match="no edge leads from stage 1"):
            last.output(2)


# --- A6: a slow consumer --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.soak)])
async def test_a_slow_consumer_bounds_its_producer(
    backend: str, namespace: str, count: int
) -> None:
    limit = 8 << 20
    lags: list[float] = []
    used: list[int] = []

    async def tick() -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.002)
            lags.append(time.monotonic() - begun)

    async with open_pair(backend, namespace, memory_pool_size=limit) as (tx, rx):

        async def produce() -> None:
            for index in range(count):
                await tx.put("0", "1", f"k{index}", block(index % 251, 256 << 10), timeout=60)
                used.append(tx.health().pool_used)

        ticking = asyncio.create_task(tick())
        producing = asyncio.create_task(produce())
        for index in range(count):
            with await rx.get("0", "1", f"k{index}", timeout=60) as delivery:
                assert (delivery.value == index % 251).all()
            await asyncio.sleep(0.002)
        await producing
        ticking.cancel()
    assert max(used) <= limit
    assert max(used) > limit // 2, "the producer never ran ahead, so nothing was tried"
    assert sorted(lags)[int(len(lags) * 0.99)] < 0.05


# --- A15: two writers of one key ------------------------------------------------------------------


async def test_two_writers_of_one_key_never_mix(pair: Pair) -> None:
    tx, rx = pair
    refused = 0

    async def write(first: int) -> None:
        nonlocal refused
        for number in range(200):
            try:
                await tx.put("0", "1", "k", block(first + number % 100))
            except omni_async.KeyExists:
                refused += 1
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write(0)), asyncio.create_task(write(100))]
    read = 0
    while not all(writer.done() for writer in writers):
        try:
            delivery = await rx.get("0", "1", "k", timeout=0)
        except omni_async.KeyNotFound:
            await asyncio.sleep(0)
            continue
        assert len(np.unique(delivery.value)) == 1
        delivery.release()
        read += 1
    await asyncio.gather(*writers)
    assert read > 0
    assert read + refused <= 400


async def test_what_was_got_can_be_put_again(pair: Pair) -> None:
    """A payload is consumed when its get has returned, whatever words are still under way."""
    tx, rx = pair
    for number in range(100):
        value: Any = number if number % 2 else block(number)
        await tx.put("0", "1", "k", value)
        with await rx.get("0", "1", "k", timeout=5) as delivery:
            assert np.array_equal(delivery.value, value)


async def test_what_was_got_elsewhere_can_be_put_again(processes: Processes) -> None:
    sender, receiver = await processes.both()
    for number in range(50):
        await sender.do("put", key="k", fill=number, nbytes=10 if number % 2 else 100_000)
        assert (await receiver.do("get", key="k"))[0] == [number]


async def test_a_second_process_cannot_be_the_same_sender(processes: Processes) -> None:
    first = await processes.agent("sender")
    second = processes.start(role="sender")
    with pytest.raises(AgentError) as caught:
        await second.do("open")
    assert caught.value.kind == "UsageError"
    assert str(first.pid) in caught.value.text
    await first.do("put", key="k", fill=1, nbytes=1000)
    receiver = await processes.agent("receiver")
    assert await receiver.do("get", key="k") == [[1], 1000]
