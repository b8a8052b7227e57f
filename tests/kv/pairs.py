"""A producer and a consumer of KV caches in one loop, and how to wait for what they do.

In: two transports' ends, layouts. Out: both, met; caches that are filled, and spoiled ones.
Never: leaves a fault of a double behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from omni_async.kv.consumer import KVConsumer
from omni_async.kv.producer import KVProducer
from omni_async.registry import register_backend
from omni_async.testing.doubles import loopback
from omni_async.testing.doubles.loopback import FAULTS
from tests.ends import Ends
from tests.kv.nodes import Node, give_here, layout

DOUBLES = ["loopback-write", "loopback-read", "loopback-map"]
SOURCE, TARGET = [3, 7, 8, 1], [20, 2, 3, 9]
"""Blocks of a request."""


@contextlib.contextmanager
def loopbacks() -> Iterator[None]:
    """The doubles of each verb, and no fault of theirs afterwards."""
    for double in (loopback.LoopbackWrite, loopback.LoopbackRead, loopback.LoopbackMap):
        register_backend(double())
    try:
        yield
    finally:
        FAULTS.clear()


def pair(
    source: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    *,
    shared: bool = True,
) -> tuple[Node, Node]:
    """A source that is filled, and a target that is spoiled; what is told of their layouts differs from the usual."""
    here = Node(layout(**(source or {})), shared=shared)
    there = Node(layout(**(target or {})), shared=shared)
    here.fill(1)
    there.spoil()
    return here, there


@contextlib.asynccontextmanager
async def joined(
    where: Ends, source: Node, target: Node, *, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[KVProducer, KVConsumer]]:
    """A producer and a consumer in this loop.

    Args:
        limits: of both.
        options: of the consumer.
    """
    limits = limits or {}
    options = {"from_stage": "0", **limits, **options}
    async with (
        where.open("sender", "0") as tx,
        where.open("receiver", "1") as rx,
        KVProducer(tx, source.layout, source.caches, **limits) as producer,
        KVConsumer(rx, target.layout, target.caches, **options) as consumer,
    ):
        source.end, target.end = producer, consumer
        yield producer, consumer


@contextlib.asynccontextmanager
async def transports(where: Ends) -> AsyncIterator[tuple[Any, Any]]:
    """Two with a line between them before there are caches."""
    async with where.open("sender", "0") as tx, where.open("receiver", "1") as rx:
        await tx.put("0", "1", "warm", b"up")
        await rx.get("0", "1", "warm")
        yield tx, rx


class Gate:
    """An event of a device that a test lets come."""

    def __init__(self, *, fails: bool = False) -> None:
        self.come = threading.Event()
        self.threads: set[int] = set()
        self._fails = fails

    def synchronize(self) -> None:
        self.threads.add(threading.get_ident())
        self.come.wait(20)
        if self._fails:
            raise RuntimeError("the device fell off")


async def carry(source: Node, target: Node, consumer: KVConsumer, request: str) -> None:
    progress = await consumer.receive(request, TARGET)
    await asyncio.wait_for(give_here(source, request, SOURCE, "write"), 5)
    await progress.all(timeout=5)
    assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def until(true: Callable[[], bool]) -> None:
    """Within 2 s."""
    for _ in range(400):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


def nothing_left(producer: KVProducer, consumer: KVConsumer) -> None:
    core, transfers = producer.core, consumer._transfers
    tables: list[Any] = [core.sessions, core._shares, core._waiting, consumer.core.shares]
    tables += [producer._sessions, producer._sessions.still]
    tables += [transfers, transfers.busy, transfers.still, consumer._landing._slots._shares]
    assert [table for table in tables if table] == []
