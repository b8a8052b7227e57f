"""asyncio: interrupts end the process, and calls from the wrong place say so."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import omni_async
from tests.cases.processes import Processes
from tests.pairs import open_pair

# --- H2: interrupts -------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("what", ["get", "get without a sender", "put", "copy"])
async def test_an_interrupt_ends_a_blocked_process(
    processes: Processes, what: str, loop: str
) -> None:
    pytest.importorskip("uvloop" if loop == "uvloop" else "asyncio")
    blocked = processes.start("tests.cases.blocked", what=what, loop=loop)
    assert await blocked.answer() == "blocking"
    await asyncio.sleep(0.2)
    begun = time.monotonic()
    blocked.signal(signal.SIGINT)
    code = await blocked.ended(timeout=10)
    assert time.monotonic() - begun < 3
    assert code in (1, 130, -signal.SIGINT)
    words = blocked.words().strip().splitlines()
    assert words[-1] == "KeyboardInterrupt"
    assert not any("never awaited" in line or "Exception ignored" in line for line in words)


# --- H4: calls from the wrong place ---------------------------------------------------------------


def test_open_outside_a_loop_opens_nothing(backend: str) -> None:
    opening: Any = omni_async.open_transport(backend, role="sender", stage="0", namespace="none")
    with pytest.raises((omni_async.UsageError, TypeError, AttributeError)) as caught:
        with opening:
            pass
    assert "async" in str(caught.value)


async def test_use_from_another_thread_is_an_error_there(backend: str, namespace: str) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        errors: list[BaseException] = []

        def elsewhere(call: Any) -> None:
            async def main() -> None:
                await call()

            try:
                asyncio.run(main())
            except BaseException as error:  # noqa: BLE001 - handed to the test
                errors.append(error)

        calls = [
            lambda: tx.put("0", "1", "k", 1),
            lambda: rx.get("0", "1", "k", timeout=1),
            lambda: tx.cleanup("k"),
            lambda: tx.drain(1),
        ]
        for call in calls:
            thread = threading.Thread(target=elsewhere, args=(call,))
            thread.start()
            await asyncio.to_thread(thread.join, 5)
            assert not thread.is_alive(), "it hangs"
        assert [type(error) for error in errors] == [omni_async.UsageError] * len(calls)
        assert all("loop" in str(error) for error in errors)
        await tx.put("0", "1", "k", 1)
        assert (await rx.get("0", "1", "k", timeout=5)).value == 1


async def test_releasing_from_another_thread_is_allowed(backend: str, namespace: str) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        await tx.put("0", "1", "k", np.zeros(200_000, dtype=np.uint8))
        delivery = await rx.get("0", "1", "k", timeout=5)
        await asyncio.to_thread(delivery.release)
        del delivery
        for _ in range(200):
            if tx.health().pool_used == 0:
                return
            await asyncio.sleep(0.01)
        pytest.fail("memory released in another thread did not come back")


async def test_waiting_blocks_no_loop(backend: str, namespace: str) -> None:
    """vllm-omni#4243: a put or get that blocks the loop stops every other request."""
    async with open_pair(backend, namespace, memory_pool_size=2 << 20) as (tx, rx):
        big = np.zeros(1_500_000, dtype=np.uint8)
        await tx.put("0", "1", "first", big)
        waiting = [
            asyncio.create_task(tx.put("0", "1", "second", big, timeout=10)),
            asyncio.create_task(rx.get("0", "1", "never", timeout=10)),
        ]
        gaps = []
        for _ in range(100):
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - begun)
        assert sorted(gaps)[90] < 0.02
        (await rx.get("0", "1", "first", timeout=5)).release()
        await waiting[0]
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


# --- other reports of this family -----------------------------------------------------------------


async def test_cancelling_a_large_put_leaves_its_memory_whole(backend: str, namespace: str) -> None:
    """cpython#107505: cancelling does not stop the thread that copies; its target must not be reused."""
    async with open_pair(backend, namespace, memory_pool_size=80 << 20) as (tx, rx):
        source = np.full(32 << 20, 1, dtype=np.uint8)
        for number in range(6):
            putting = asyncio.create_task(tx.put("0", "1", "cancelled", source))
            await asyncio.sleep(0.0005 * number)
            putting.cancel()
            outcome = (await asyncio.gather(putting, return_exceptions=True))[0]
            if isinstance(outcome, omni_async.Receipt):  # it was quicker
                (await rx.get("0", "1", "cancelled", timeout=5)).release()
            await tx.put("0", "1", "next", np.full(32 << 20, 2, dtype=np.uint8))
            with await rx.get("0", "1", "next", timeout=5) as delivery:
                await asyncio.sleep(0.01)
                assert (delivery.value == 2).all()
        with pytest.raises(omni_async.KeyNotFound):
            await rx.get("0", "1", "cancelled", timeout=0)


def test_two_loops_one_after_the_other(backend: str, namespace: str) -> None:
    """pyzmq#1547: state of the first loop must not reach into the second."""

    async def use() -> None:
        async with open_pair(backend, namespace) as (tx, rx):
            await tx.put("0", "1", "k", np.ones(100_000))
            assert (await rx.get("0", "1", "k", timeout=5)).value.sum() == 100_000

    asyncio.run(use())
    asyncio.run(use())


async def test_an_error_in_the_body_is_the_one_that_is_seen(backend: str, namespace: str) -> None:
    """A task group around a transport would wrap the caller's own error."""

    async def body() -> None:
        async with open_pair(backend, namespace) as (tx, _):
            await tx.put("0", "1", "k", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()


async def test_closing_ends_what_waits(backend: str, namespace: str) -> None:
    async with open_pair(backend, namespace) as (_, rx):
        waiting = asyncio.create_task(rx.get("0", "1", "never", timeout=60))
        await asyncio.sleep(0.01)
        await rx.aclose()
        with pytest.raises((omni_async.TransferCancelled, omni_async.ClosedError)):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(omni_async.ClosedError):
            await rx.get("0", "1", "k", timeout=1)
