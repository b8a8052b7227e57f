"""Waiting and waking: nothing spins, nothing starves, and who is at fault is named."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import numpy as np
import pytest

import omni_async
from omni_async.model import TransferKey
from omni_async.rendezvous.messages import Ahead, Offer, Want
from omni_async.rendezvous.receiver import Receiver
from tests.cases.processes import AgentError, Process, Processes
from tests.pairs import open_pair

# --- B1: data and the word that announces it ------------------------------------------------------


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("nbytes", [64, 20_000], ids=["inline", "in the pool"])
async def test_no_word_overtakes_its_data(processes: Processes, count: int, nbytes: int) -> None:
    """The word travels through a socket: the kernel orders it after the bytes on every processor."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores to pin the ends to")
    ends = [
        processes.start("tests.cases.stress", role=role, count=count, nbytes=nbytes, core=core)
        for role, core in (("sender", cores[0]), ("receiver", cores[1]))
    ]
    await asyncio.gather(*(end.answer() for end in ends))
    for end in ends:
        end.line.send("go")
    outcomes = [await end.answer(timeout=300) for end in ends]
    assert outcomes == [{"sent": count}, {"whole": count, "wrong": []}]


def test_wants_leave_in_the_order_of_their_gets() -> None:
    """A Want held back behind a newer one looks like one that came twice: its get waits for ever."""
    receiver = Receiver()
    receiver.connected()

    def want(key: str) -> int:
        return receiver.want(TransferKey("0", "1", key))

    def offer(op: int) -> Offer:
        return Offer(op, 1, [1], [], [], b"x")

    first = want("first")
    receiver.words()
    receiver.receive(Ahead("0", "1", "unasked", offer(-1)))
    receiver.consume(want("unasked"), holding=False)
    held_back = want("held back")  # what came ahead pays, so this Want may travel with other words
    receiver.receive(offer(first))
    receiver.consume(first, holding=False)
    asked = want("asked at once")
    wants = [word.op for word in receiver.words() if isinstance(word, Want)]
    assert wants == [held_back, asked]


# --- B4: starvation under contention and after idling ---------------------------------------------


@pytest.mark.parametrize("idle", [2.5, pytest.param(60.0, marks=pytest.mark.soak)])
async def test_traffic_goes_on_after_an_idle_time_among_busy_processes(
    processes: Processes, idle: float
) -> None:
    receivers = [await processes.agent("receiver") for _ in range(2)]
    sender = await processes.agent("sender")
    for number, receiver in enumerate(receivers):
        for index in range(4):
            await receiver.do("wait", key=f"{number}-{index}")
    burners = [processes.start("tests.cases.burner") for _ in range(len(os.sched_getaffinity(0)))]
    for burner in burners:
        await burner.answer()
    await asyncio.sleep(idle)
    for number, receiver in enumerate(receivers):
        for index in range(4):
            begun = await sender.do("moment")
            await sender.do("put", key=f"{number}-{index}", fill=1, nbytes=100_000)
            arrived = await receiver.do("outcome", key=f"{number}-{index}")
            assert arrived - begun < 1.0


# --- B5: waiting costs CPU ------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seconds", [2.0, pytest.param(30.0, marks=pytest.mark.soak)])
async def test_waiting_costs_nothing_and_ends_at_once(
    processes: Processes, loop: str, seconds: float
) -> None:
    pytest.importorskip("uvloop" if loop == "uvloop" else "asyncio")
    sender, receiver = await processes.both(loop=loop)
    for index in range(20):
        await receiver.do("wait", key=f"k{index}")
    for process in (sender, receiver):
        process.tell("cpu", seconds=seconds)
    used = [await process.answer(timeout=seconds + 20) for process in (sender, receiver)]
    assert sum(used) < 0.05 * seconds
    begun = await sender.do("moment")
    await sender.do("put", key="k7", fill=1, nbytes=1000)
    assert await receiver.do("outcome", key="k7") - begun < 0.05


async def test_waiting_for_a_sender_that_never_starts_costs_little(processes: Processes) -> None:
    receiver = await processes.agent("receiver")
    await receiver.do("wait", key="k")
    assert await receiver.do("cpu", seconds=2.0) < 0.1


# --- B6: the peer is stuck, and nobody says which one ---------------------------------------------


async def test_a_stopped_sender_is_named_by_the_receiver(processes: Processes) -> None:
    sender, receiver = await processes.both()
    await sender.do("put", key="first", fill=1, nbytes=1000)
    await receiver.do("get", key="first")
    sender.signal(signal.SIGSTOP)
    with pytest.raises(AgentError) as caught:
        await receiver.do("get", key="needed", timeout=2.6)
    sender.signal(signal.SIGCONT)
    assert caught.value.kind == "TransferTimeout"
    _says(caught.value.text, "needed", "0->1", sender, "2.6 s")


async def test_a_stopped_receiver_is_named_by_the_sender(processes: Processes) -> None:
    sender, receiver = await processes.both(extra={"memory_pool_size": 2 << 20})
    await sender.do("put", key="held", fill=1, nbytes=1 << 20)
    await receiver.do("get", key="held", keep=True)
    receiver.signal(signal.SIGSTOP)
    # one more may fit beside the one that is held
    await sender.attempt("put", key="more", fill=1, nbytes=1 << 20, timeout=0.1)
    with pytest.raises(AgentError) as caught:
        await sender.do("put", key="needed", fill=1, nbytes=1 << 20, timeout=2.6)
    receiver.signal(signal.SIGCONT)
    assert caught.value.kind == "PoolExhausted"
    _says(caught.value.text, "needed", "0->1", receiver, "2.6 s")


def _says(text: str, key: str, edge: str, peer: Process, how_long: str) -> None:
    for word in (key, edge, str(peer.pid), how_long):
        assert word in text, f"{word!r} is not in: {text}"


async def test_a_missing_sender_is_told_from_a_missing_payload(namespace: str) -> None:
    """vllm PR#53851: one text for a writer that waits and a reader that waits misleads for days."""
    async with omni_async.open_transport(
        "shm", role="receiver", stage="1", namespace=namespace
    ) as rx:
        with pytest.raises(omni_async.TransferTimeout) as nobody:
            await rx.get("0", "1", "k", timeout=0.3)
        async with omni_async.open_transport("shm", role="sender", stage="0", namespace=namespace):
            with pytest.raises(omni_async.KeyNotFound):
                await rx.get("0", "1", "k", timeout=0)  # now there is a line
            with pytest.raises(omni_async.TransferTimeout) as nothing:
                await rx.get("0", "1", "k", timeout=0.3)
    assert "no line to a sender" in str(nobody.value)
    assert f"process {os.getpid()}" in str(nothing.value)
    for error in (nobody.value, nothing.value):
        assert error.key == "k"
        assert error.edge == ("0", "1")
        assert error.timeout == 0.3


# --- other reports of this family -----------------------------------------------------------------


async def test_a_cancelled_wait_loses_no_payload(backend: str, namespace: str) -> None:
    """cpython#86296, pyzmq#1925: what arrives in the very turn of a time-out must not be lost."""
    async with open_pair(backend, namespace) as (tx, rx):
        for number in range(300):
            key = f"k{number}"
            waiting = asyncio.create_task(rx.get("0", "1", key, timeout=5))
            await asyncio.sleep(0)
            await tx.put("0", "1", key, number)
            for _ in range(number % 8):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                delivery = await waiting
            except asyncio.CancelledError:
                delivery = await rx.get("0", "1", key, timeout=5)
            assert delivery.value == number
            delivery.release()
        assert rx.health().in_flight == 0


async def test_a_timeout_in_the_turn_of_arrival_loses_no_payload(
    backend: str, namespace: str
) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        value = np.arange(30_000)
        lost = 0
        for number in range(150):
            key = f"k{number}"
            waiting = asyncio.create_task(rx.get("0", "1", key, timeout=0.0005 * (1 + number % 5)))
            await asyncio.sleep(0.0005 * (number % 5))
            await tx.put("0", "1", key, value)
            try:
                delivery = await waiting
            except omni_async.TransferTimeout:
                lost += 1
                delivery = await rx.get("0", "1", key, timeout=5)
            assert (delivery.value == value).all()
            delivery.release()
        assert lost < 150, "every wait timed out, so nothing was tried"


async def test_one_wait_that_never_ends_holds_up_nobody(backend: str, namespace: str) -> None:
    """vllm-omni#1131: one request that waits must not stall the others."""
    async with open_pair(backend, namespace) as (tx, rx):

        async def round_trip(key: str) -> float:
            begun = time.perf_counter()
            await tx.put("0", "1", key, b"x" * 20_000)
            (await rx.get("0", "1", key, timeout=5)).release()
            return time.perf_counter() - begun

        async def median(prefix: str) -> float:
            times = [await round_trip(f"{prefix}{index}") for index in range(200)]
            return sorted(times)[100]

        await median("warm")
        alone = await median("alone")
        stuck = [asyncio.create_task(rx.get("0", "1", f"never{i}", timeout=60)) for i in range(50)]
        await asyncio.sleep(0)
        beside = await median("beside")
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        assert beside < 2 * alone + 0.001
