"""Ranks of one producer that do not tell the same: no cache in part is handed out, and all of them hear why."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

import omni_async
from omni_async.errors import ProtocolError
from omni_async.kv import KVConsumer, KVMemory, KVProducer, KVSession
from tests.kv.nodes import layout


@contextlib.asynccontextmanager
async def _two_to_one(namespace: str) -> AsyncIterator[tuple[list[KVProducer], KVConsumer]]:
    async with contextlib.AsyncExitStack() as stack:
        producers = []
        for rank in (0, 1):
            tx = omni_async.open_transport(
                "memory", role="sender", stage="p", rank=rank, namespace=namespace
            )
            of = layout(tp_size=2, tp_rank=rank)
            producer = KVProducer(await stack.enter_async_context(tx), of, KVMemory(of))
            producers.append(await stack.enter_async_context(producer))
        rx = omni_async.open_transport("memory", role="receiver", stage="d", namespace=namespace)
        of = layout()
        consumer = KVConsumer(
            await stack.enter_async_context(rx),
            of,
            KVMemory(of),
            from_stage="p",
            source_tp=2,
        )
        yield producers, await stack.enter_async_context(consumer)


@pytest.mark.parametrize("tokens", [(8, 7), (7, 8), (None, 5), (5, None)])
async def test_they_do_not_agree_about_tokens(
    namespace: str, tokens: tuple[int | None, int | None]
) -> None:
    async with _two_to_one(namespace) as (producers, consumer):
        sessions: list[KVSession] = [
            await producer.offer("r", [0, 1], tokens=count)
            for producer, count in zip(producers, tokens, strict=True)
        ]
        progress = await consumer.receive("r", [5, 6], mode="read")
        held = [8 if count is None else count for count in tokens]
        with pytest.raises(ProtocolError, match=f"{min(held)} by .*|{max(held)} by .*") as told:
            await progress.all()
        assert all(f"{count} by" in str(told.value) for count in held)
        assert not progress.done
        for session in sessions:
            with pytest.raises(ProtocolError, match="different numbers of tokens"):
                await session.delivered()
        await progress.released()


async def test_full_blocks_are_as_many_tokens_told_or_not(namespace: str) -> None:
    async with _two_to_one(namespace) as (producers, consumer):
        first = await producers[0].offer("r", [0, 1])
        second = await producers[1].offer("r", [0, 1], tokens=8)
        await (await consumer.receive("r", [5, 6], mode="read")).all()
        await first.delivered()
        await second.delivered()


async def test_they_do_not_agree_about_blocks(namespace: str) -> None:
    async with _two_to_one(namespace) as (producers, consumer):
        sessions = [
            await producers[0].offer("r", [0, 1]),
            await producers[1].offer("r", [0, 1, 2], tokens=10),
        ]
        progress = await consumer.receive("r", [5, 6], mode="read")
        with pytest.raises(ProtocolError):
            await progress.all()
        for session in sessions:
            with pytest.raises(ProtocolError):
                await session.delivered()
