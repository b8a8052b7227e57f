"""A transport over a store at moments that a real server cannot be brought to at will: with the double."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.errors import DecodeError, EngineFault, KeyNotFound, TransferTimeout
from omni_async.registry import register_backend
from omni_async.testing.doubles.kept import KeptBackend, Server
from omni_async.testing.leaks import quiet
from omni_async.transport.stored.fetching import AT_ONCE
from omni_async.transport.stored.head import unseal

LARGE = 300_000


class Ends:
    def __init__(self, namespace: str) -> None:
        register_backend(KeptBackend())
        self.namespace = namespace
        self.server = Server.named(namespace)

    def __call__(self, role: Any, **extra: Any) -> Any:
        spec = {"name": "kept", "extra": {"server": self.namespace, **extra}}
        stage = "0" if role == "sender" else "1"
        return omni_async.open_transport(
            spec, role=role, stage=stage, namespace=self.namespace, linger=0
        )

    @contextlib.asynccontextmanager
    async def pair(self, **extra: Any) -> AsyncIterator[tuple[Any, Any]]:
        async with self("sender", **extra) as tx, self("receiver", **extra) as rx:
            yield tx, rx

    def name(self, key: str) -> str:
        return f"{key}@0_1@{self.namespace}"


@pytest.fixture
def ends(namespace: str) -> Ends:
    return Ends(namespace)


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- puts whose callers have left ---------------------------------------------------------------------


async def test_an_older_put_never_comes_to_lie_over_a_newer_one(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        ends.server.gate.clear()
        older = asyncio.ensure_future(tx.put("0", "1", "k", "older"))
        await _turns()
        older.cancel()
        await asyncio.wait({older})
        newer = asyncio.ensure_future(tx.put("0", "1", "k", "newer"))
        await _turns()
        assert not newer.done()
        ends.server.gate.set()
        await asyncio.wait_for(newer, 5)
        assert (await rx.get("0", "1", "k", timeout=5)).value == "newer"
        await _until_absent(ends, "k")


async def test_several_that_have_left_are_waited_for_one_after_another(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        ends.server.gate.clear()
        left = [asyncio.ensure_future(tx.put("0", "1", "k", n)) for n in range(3)]
        await _turns()
        for put in left:
            put.cancel()
        await asyncio.wait(left)
        last = asyncio.ensure_future(tx.put("0", "1", "k", "last"))
        await _turns()
        ends.server.gate.set()
        await asyncio.wait_for(last, 5)
        assert (await rx.get("0", "1", "k", timeout=5)).value == "last"


async def test_a_put_that_succeeds_too_late_is_taken_back(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        ends.server.gate.clear()
        put = asyncio.ensure_future(tx.put("0", "1", "k", bytes(LARGE)))
        await _turns()
        put.cancel()
        await asyncio.wait({put})
        assert tx.health().quarantined == 1
        ends.server.gate.set()
        await quiet(tx)
        await _until_absent(ends, "k")
        with pytest.raises(KeyNotFound) as caught:
            await rx.get("0", "1", "k", timeout=0)
        assert not caught.value.expired
        assert await tx.drain(0) == 0


async def test_a_chunk_that_the_store_took_after_all_is_counted(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        async with (
            tx.edge("0", "1").stream("s") as writer,
            rx.edge("0", "1").stream("s") as reader,
        ):
            await writer.send(0)
            assert await reader.read(5) == 0
            ends.server.gate.clear()
            sending = asyncio.ensure_future(writer.send(1))
            await _turns()
            sending.cancel()
            await asyncio.wait({sending})
            assert writer.sent == 1
            ends.server.gate.set()
            await writer.send(2)
            assert writer.sent == 3
            assert [await reader.read(5), await reader.read(5)] == [1, 2]


async def test_a_chunk_that_failed_after_its_caller_had_left_is_not(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        async with (
            tx.edge("0", "1").stream("s") as writer,
            rx.edge("0", "1").stream("s") as reader,
        ):
            ends.server.gate.clear()
            sending = asyncio.ensure_future(writer.send(0))
            await _turns()
            sending.cancel()
            await asyncio.wait({sending})
            ends.server.down = True
            ends.server.gate.set()
            await _turns()
            ends.server.down = False
            await writer.send(1)
            assert writer.sent == 1
            assert await reader.read(5) == 1


# --- gets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_what_is_here_is_handed_over_however_short_the_limit(
    ends: Ends, timeout: float
) -> None:
    """The limit is for waiting: deleting what was read may take longer than that."""
    async with ends.pair(guards=False) as (tx, rx):
        for _ in range(20):
            await tx.put("0", "1", "k", "value")
            assert (await rx.get("0", "1", "k", timeout=timeout)).value == "value"


@pytest.mark.parametrize("value", ["small", bytes(LARGE)], ids=["small", "large"])
async def test_what_was_deleted_for_a_get_that_has_left_is_put_back(ends: Ends, value: Any) -> None:
    async with ends.pair(guards=False) as (tx, rx):
        for turns in range(60):
            await tx.put("0", "1", "k", value)
            getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=5))
            await _turns(turns)
            getting.cancel()
            await asyncio.wait({getting})
            if getting.cancelled():
                assert (await rx.get("0", "1", "k", timeout=5)).value == value
            else:
                assert getting.result().value == value
            del getting
            with pytest.raises(KeyNotFound):
                await rx.get("0", "1", "k", timeout=0)
        await quiet(rx)


async def test_what_somebody_else_has_got_is_not_put_back(ends: Ends) -> None:
    async with ends.pair(guards=False) as (tx, rx):
        await tx.put("0", "1", "k", "value")
        getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=5))
        while ends.name("k") not in ends.server.leases:  # noqa: ASYNC110 - it reads, then deletes
            await asyncio.sleep(0)
        ends.server.gate.clear()
        await _turns()
        getting.cancel()
        await asyncio.wait({getting})
        assert getting.cancelled()
        ends.server.objects.pop(ends.name("k"), None)  # another receiver
        ends.server.gate.set()
        await _turns(50)
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "k", timeout=0)


async def test_an_error_that_is_kept_holds_no_memory(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        await tx.put("0", "1", "k", np.zeros(LARGE, np.uint8))
        data = bytearray(ends.server.objects[ends.name("k")])
        _, [at, *_] = unseal(memoryview(data), ends.name("k"))
        data[at : at + 64] = b"\xc1" * 64
        ends.server.objects[ends.name("k")] = bytes(data)
        with pytest.raises(DecodeError) as caught:
            await rx.get("0", "1", "k", timeout=5)
        await quiet(rx)
        assert rx.health().decode_faults == 1
        assert caught.value is not None
        await _until_absent(ends, "k")  # nobody can ever read it


async def test_what_others_have_put_is_told_from_what_is_damaged(ends: Ends) -> None:
    async with ends("receiver") as rx:
        ends.server.objects[ends.name("k")] = b"\x80" * 100
        with pytest.raises(DecodeError, match="peer: vllm-omni"):
            await rx.get("0", "1", "k", timeout=5)


async def test_waiting_outlives_a_server_that_is_down(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        waiting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=10))
        late = asyncio.ensure_future(rx.get("0", "1", "late", timeout=0.3))
        await _turns()
        ends.server.down = True
        with pytest.raises(TransferTimeout, match="does not answer"):
            await late
        with pytest.raises(EngineFault):
            await rx.get("0", "1", "other", timeout=0)
        with pytest.raises(EngineFault):
            await tx.put("0", "1", "k", 1)
        ends.server.restart()
        await tx.put("0", "1", "k", 2)
        assert (await waiting).value == 2


async def test_many_that_wait_are_asked_for_together(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        waiting = [asyncio.ensure_future(rx.get("0", "1", f"k{n}")) for n in range(500)]
        await asyncio.sleep(0.05)
        # Some try their luck first.
        assert max(map(len, ends.server.questions)) >= 500 - AT_ONCE
        await asyncio.gather(*(tx.put("0", "1", f"k{n}", n) for n in range(500)))
        assert [delivery.value for delivery in await asyncio.gather(*waiting)] == list(range(500))
        asked = len(ends.server.questions)
        await asyncio.sleep(0.05)
        assert len(ends.server.questions) == asked  # nobody waits


# --- time limits --------------------------------------------------------------------------------------


async def test_what_was_being_read_when_it_expired_leaves_word_too(ends: Ends) -> None:
    async with ends.pair(buffer_ttl_seconds=0.1) as (tx, rx):
        await tx.put("0", "1", "k", 1)
        ends.server.leases[ends.name("k")] = asyncio.get_running_loop().time() + 0.3
        assert await asyncio.wait_for(tx.drain(5), 10) == 0
        with pytest.raises(KeyNotFound) as caught:
            await rx.get("0", "1", "k", timeout=0)
        assert caught.value.expired


async def test_draining_without_a_limit_ends_when_all_has_expired(ends: Ends) -> None:
    """The store takes questions for reading: who drains must not keep alive what it waits for."""
    async with ends("sender", buffer_ttl_seconds=0.3) as tx:
        for number in range(5):
            await tx.put("0", "1", f"k{number}", number)
        assert await asyncio.wait_for(tx.drain(None), 5) == 0


async def _until_absent(ends: Ends, key: str) -> None:
    limit = asyncio.get_running_loop().time() + 5
    while ends.name(key) in ends.server.objects:
        assert asyncio.get_running_loop().time() < limit
        await asyncio.sleep(0.01)


async def test_what_was_replaced_while_it_was_read_is_read_again(ends: Ends) -> None:
    async with ends.pair() as (tx, rx):
        await tx.put("0", "1", "k", np.zeros(LARGE, np.uint8))
        name = ends.name("k")
        first = ends.server.objects[name]
        ends.server.leases.clear()
        await tx.put("0", "1", "k", np.ones(LARGE, np.uint8))
        second = ends.server.objects[name]
        half = len(second) // 2
        ends.server.objects[name] = first[:half] + second[half:]
        waiting = asyncio.create_task(rx.get("0", "1", "k", timeout=5))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        ends.server.objects[name] = second
        assert ((await waiting).value == 1).all()
