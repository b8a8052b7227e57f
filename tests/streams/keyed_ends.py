"""Both ends of streams over nothing but put, get and cleanup of an existing transport."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import omni_async
from omni_async.transport.base import Transport
from omni_async.transport.streams.keyed import STALL_SECONDS, KeyedStreams
from omni_async.transport.streams.keyed_reader import KeyedReader
from omni_async.transport.streams.keyed_writer import KeyedWriter


class Ends(NamedTuple):
    """A sender of stage 0 and a receiver of stage 1."""

    tx: Transport
    rx: Transport
    sending: KeyedStreams
    receiving: KeyedStreams

    def writer(self, key: str = "r") -> KeyedWriter:
        return self.sending.writer(self.tx.enter("sender", "0", "1", key))

    def reader(self, key: str = "r") -> KeyedReader:
        return self.receiving.reader(self.rx.enter("receiver", "0", "1", key))


@contextlib.asynccontextmanager
async def opened(
    backend: str, namespace: str, *, stall: float | None = STALL_SECONDS, pool: int | None = None
) -> AsyncIterator[Ends]:
    extra = {} if pool is None else {"memory_pool_size": pool}
    spec = {"name": backend, "extra": extra}
    async with (
        omni_async.open_transport(
            spec, role="sender", stage="0", namespace=namespace, linger=0
        ) as tx,
        omni_async.open_transport(spec, role="receiver", stage="1", namespace=namespace) as rx,
    ):
        yield Ends(tx, rx, KeyedStreams(tx), KeyedStreams(rx, stall_timeout=stall))


@contextlib.asynccontextmanager
async def opened_receiver(
    backend: str, namespace: str, *, stall: float | None
) -> AsyncIterator[tuple[Transport, KeyedStreams]]:
    """The receiving end alone."""
    async with omni_async.open_transport(
        backend, role="receiver", stage="1", namespace=namespace
    ) as rx:
        yield rx, KeyedStreams(rx, stall_timeout=stall)
