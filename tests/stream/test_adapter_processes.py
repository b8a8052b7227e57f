"""The adapter between two processes, and what it says when one of them dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import omni_async
from omni_async import ChunkReady, ChunkTransferAdapter, PeerLost, StreamClosed, StreamFailed
from omni_async.testing import PeerProcess
from tests.stream.ends import chunks, story
from tests.stream.peer import HERE, chunk

NAMES = [f"r{number}" for number in range(64)]


@contextlib.asynccontextmanager
async def peer(role: Any, namespace: str) -> AsyncIterator[PeerProcess]:
    process = PeerProcess()
    try:
        with process.attached():
            stage = "0" if role == "sender" else "1"
            await process.open(
                "side", "shm", role=role, stage=stage, namespace=namespace, linger=1.0
            )
            yield process
    finally:
        process.close()


def receiver(namespace: str) -> Any:
    return omni_async.open_transport("shm", role="receiver", stage="1", namespace=namespace)


@pytest.mark.parametrize("nbytes", [400, 100_000])
async def test_64_requests_come_whole(namespace: str, nbytes: int) -> None:
    async with peer("sender", namespace) as process, receiver(namespace) as rx:
        edge = rx.edge("0", "1", window=4)
        async with ChunkTransferAdapter(None, input=edge, max_active=16) as adapter:
            for name in NAMES:
                adapter.register(name)
            producing = asyncio.create_task(
                process.call(
                    "use",
                    target=f"{HERE}:produce",
                    side="side",
                    names=NAMES,
                    count=20,
                    nbytes=nbytes,
                )
            )
            told = await story(adapter, ends=len(NAMES))
            assert await producing == {}
            for name in NAMES:
                expected = [chunk(name, number, nbytes) for number in range(20)]
                found = chunks(told, name)
                assert [(c["name"], c["number"]) for c in found] == [
                    (c["name"], c["number"]) for c in expected
                ]
                assert all((a["codes"] == b["codes"]).all() for a, b in zip(found, expected))  # noqa: B905 - compared above


async def test_a_producer_that_is_killed_fails_its_requests_at_once_and_others_may_follow(
    namespace: str,
) -> None:
    async with receiver(namespace) as rx:
        async with ChunkTransferAdapter(None, input=rx.edge("0", "1")) as adapter:
            for name in NAMES:
                adapter.register(name)
            begun: set[str] = set()
            killed = 0.0
            failed: dict[str, StreamFailed] = {}
            async with peer("sender", namespace) as process:
                order = {"names": NAMES, "count": 100_000, "pause": 0.005}
                producing = asyncio.create_task(
                    process.call("use", target=f"{HERE}:produce", side="side", **order)
                )
                async for event in adapter.events():
                    if isinstance(event, ChunkReady):
                        begun.add(event.request_id)
                        if len(begun) == len(NAMES) and not killed:
                            process.kill()
                            killed = time.monotonic()
                    elif isinstance(event, StreamFailed):
                        failed[event.request_id] = event
                        if len(failed) == len(NAMES):
                            break
                assert time.monotonic() - killed < 2.0
                for each in failed.values():
                    assert isinstance(each.error, PeerLost)
                    assert each.request_id in str(each.error)
                await asyncio.gather(producing, return_exceptions=True)
            assert adapter.requests == frozenset()

            async with peer("sender", namespace) as successor:
                adapter.register("r0")
                producing = asyncio.create_task(
                    successor.call(
                        "use", target=f"{HERE}:produce", side="side", names=["r0"], count=5
                    )
                )
                assert [c["number"] for c in chunks(await story(adapter), "r0")] == list(range(5))
                assert await producing == {}


async def test_a_consumer_that_is_killed_fails_its_requests_at_the_producer(namespace: str) -> None:
    async with omni_async.open_transport(
        "shm", role="sender", stage="0", namespace=namespace, linger=0
    ) as tx:
        edge = tx.edge("0", "1", window=4)
        async with ChunkTransferAdapter(None, output=edge) as adapter:
            async with peer("receiver", namespace) as process:
                consuming = asyncio.create_task(
                    process.call(
                        "use",
                        target=f"{HERE}:consume",
                        side="side",
                        names=NAMES[:8],
                        stop_after=20,
                    )
                )
                for name in NAMES[:8]:
                    for number in range(4):
                        await adapter.send(name, chunk(name, number, 100))
                await asyncio.sleep(0.1)
                process.kill()
                killed = time.monotonic()
                told = await story(adapter, ends=8)
                assert time.monotonic() - killed < 2.0
                assert {event.request_id for event in told} == set(NAMES[:8])
                for event in told:
                    assert isinstance(event, StreamFailed)
                    assert isinstance(event.error, StreamClosed)
                await asyncio.gather(consuming, return_exceptions=True)
                assert adapter.requests == frozenset()


async def test_a_consumer_in_another_process_hears_of_each_end(namespace: str) -> None:
    async with omni_async.open_transport(
        "shm", role="sender", stage="0", namespace=namespace, linger=1
    ) as tx:
        async with (
            peer("receiver", namespace) as process,
            ChunkTransferAdapter(None, output=tx.edge("0", "1")) as adapter,
        ):
            consuming = asyncio.create_task(
                process.call(
                    "use",
                    target=f"{HERE}:consume",
                    side="side",
                    names=["whole", "aborted", "failed"],
                )
            )
            for name in ("whole", "aborted", "failed"):
                adapter.submit(name, chunk(name, 0, 100))
            adapter.submit("whole", None, finished=True)
            adapter.abort("aborted", "the user has left")
            adapter.submit("failed", object())
            assert await consuming == {
                "whole": 1,
                "aborted": "StreamAborted",
                "failed": "StreamAborted",
            }
