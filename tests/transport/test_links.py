"""Lines to senders that have gone: nobody dials there for ever, unless gets go there by default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import omni_async
from omni_async.errors import KeyNotFound, TransferTimeout
from omni_async.transport.direct_transport import DirectTransport
from omni_async.transport.receiving import Receiving
from tests.deploy.addressed import registered


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    with registered():
        yield


def sender(namespace: str, port: int) -> Any:
    spec = {"name": "addressed", "extra": {"zmq_port": port}}
    return omni_async.open_transport(spec, role="sender", stage="0", namespace=namespace, linger=0)


def receiver(namespace: str, port: int) -> Any:
    spec = {"name": "addressed", "extra": {"sender_host": "x", "sender_zmq_port": port}}
    return omni_async.open_transport(spec, role="receiver", stage="1", namespace=namespace)


def lines(rx: omni_async.Transport) -> int:
    assert isinstance(rx, DirectTransport)
    assert isinstance(rx._receiving, Receiving)
    return len(rx._receiving._links)


async def until_lines(rx: omni_async.Transport, count: int) -> None:
    for _ in range(1000):
        if lines(rx) == count:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{lines(rx)} lines, not {count}")


async def test_of_senders_that_moved_the_last_one_is_left(namespace: str) -> None:
    async with receiver(namespace, 1) as rx:
        for port in range(1, 6):
            rx.update_sender_info("x", port)
            async with sender(namespace, port) as tx:
                await tx.put("0", "1", "k", port)
                assert (await rx.get("0", "1", "k", timeout=5)).value == port
        await asyncio.sleep(0.05)
        assert lines(rx) == 1  # it is waited for


@pytest.mark.parametrize("timeout", [0, 5])
async def test_of_senders_that_metadata_led_to_none_is_left(namespace: str, timeout: float) -> None:
    async with receiver(namespace, 1) as rx:
        for port in range(2, 5):
            async with sender(namespace, port) as tx:
                receipt = await tx.put("0", "1", "k", bytes(100_000))
                delivery = await rx.get("0", "1", "k", receipt.metadata, timeout=timeout)
                assert lines(rx) == 1
            await until_lines(rx, 0)
            assert delivery.value == bytes(100_000)  # what was delivered stays
            del delivery


async def test_where_nobody_ever_was(namespace: str) -> None:
    async with receiver(namespace, 1) as rx:
        for port, timeout, kind in ((2, 0, KeyNotFound), (3, 0.05, TransferTimeout)):
            nowhere = {"source_host": "x", "source_port": port}
            gets = [rx.get("0", "1", f"k{n}", nowhere, timeout=timeout) for n in range(3)]
            for error in await asyncio.gather(*gets, return_exceptions=True):
                assert isinstance(error, kind)
            await until_lines(rx, 0)


async def test_a_get_or_a_stream_that_waits_there_is_a_need(namespace: str) -> None:
    async with receiver(namespace, 1) as rx:
        async with sender(namespace, 2) as tx:
            receipt = await tx.put("0", "1", "first", 1)
            assert (await rx.get("0", "1", "first", receipt.metadata, timeout=5)).value == 1
            get = asyncio.ensure_future(rx.get("0", "1", "k", receipt.metadata, timeout=5))
            stream = rx.edge("0", "1").reader("s", metadata=receipt.metadata)
            await stream.__aenter__()
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert lines(rx) == 1
        async with sender(namespace, 2) as tx:
            await tx.put("0", "1", "k", 2)
            async with tx.edge("0", "1").writer("s") as writer:
                await writer.send(3)
            assert (await get).value == 2
            assert await stream.read(5) == 3
            await stream.__aexit__(None, None, None)
            assert lines(rx) == 1
        await until_lines(rx, 0)
