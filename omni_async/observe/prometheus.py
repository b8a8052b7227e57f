"""Prometheus: the health of transports, read when somebody scrapes.

In: transports. Out: metric families.
Never: starts a server or a thread, touches a transport outside its event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from itertools import accumulate
from typing import Protocol

from ..errors import BackendUnavailable
from ..model import Health, Spread, StreamHealth

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as error:
    raise BackendUnavailable(
        "the Prometheus exporter needs prometheus-client",
        backend="prometheus",
        remedy="pip install 'omni-async[prometheus]'",
    ) from error

COUNTERS = {
    "puts": "Payloads put.",
    "gets": "Payloads got.",
    "bytes_transferred": "Payload bytes put or got.",
    "errors": "Operations that ended in an error other than their time limit.",
    "timeouts": "Operations that ended by their time limit.",
    "misses": "Gets that were told that there is nothing.",
    "transport_faults": "Errors of an engine, a store or a lost peer.",
    "decode_faults": "Payloads that could not be decoded.",
}
GAUGES = {
    "in_flight": "Operations that are moving bytes now.",
    "parked": "Gets that wait for their payload.",
    "pool_size": "Limit of the pool in bytes.",
    "pool_used": "Bytes of the pool in use.",
    "quarantined": "Slots kept because an operation on them has not ended.",
}


STREAM_COUNTERS = {
    "opened": "Streams begun here.",
    "finished": "Streams that were read or written to their end.",
    "aborted": "Streams that their writer gave up, or that were cleaned up.",
    "left": "Streams that their reader left before the end.",
    "failures": "Streams that ended by an error.",
    "chunks": "Chunks sent by writers here, or handed to readers here.",
    "nbytes": "Bytes of these chunks.",
    "stalls": "Sends that waited for credit; at a reader, streams in which nothing came for too long.",
    "stalled_seconds": "How long these sends have waited.",
    "drops": "Chunks that nobody will be handed.",
}
METRIC = {"nbytes": "bytes"}
"""Names that Prometheus says in another way."""
STREAM_GAUGES = {
    "queued": "Chunks here: not under way yet, or not handed over yet.",
    "in_flight": "Chunks under way.",
    "credits": "Chunks that may be sent now.",
}
STREAM_SPREADS = {
    "first_chunk_seconds": "From a stream's opening for reading to its first chunk.",
    "chunk_seconds": "From a chunk's sending to its reader having it, on one clock.",
    "chunk_bytes": "Bytes of a chunk.",
}


class HasHealth(Protocol):
    """What is watched: every transport."""

    def health(self) -> Health:
        """A snapshot, taken on the transport's event loop."""
        ...


class _Watched:
    def __init__(
        self, transport: HasHealth, labels: dict[str, str], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.transport = transport
        self.labels = labels
        self.loop = loop
        self.last = transport.health()

    def read(self, patience: float) -> bool:
        """Renew the snapshot; false when the loop did not answer in time."""
        if _running_loop() is self.loop:
            self.last = self.transport.health()
            return True
        answer: concurrent.futures.Future[Health] = concurrent.futures.Future()

        def ask() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self.transport.health())
                except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                    answer.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(ask)
            self.last = answer.result(patience)
        except (RuntimeError, concurrent.futures.TimeoutError):  # closed, or busy
            answer.cancel()
            return False
        return True


class TransportCollector(Collector):
    """Register it once with a Prometheus registry, then :meth:`add` transports.

    Scrapes may come from any thread. A loop that does not answer within ``patience`` seconds is reported
    with its last numbers and ``omni_async_fresh`` 0.
    """

    def __init__(self, *, patience: float = 1.0) -> None:
        self._patience = patience
        self._watched: dict[int, _Watched] = {}

    def add(self, transport: HasHealth, **labels: str) -> None:
        """Watch a transport. Call it on the transport's event loop.

        Args:
            transport: what to watch, until :meth:`remove`.
            labels: say which one it is, such as ``stage="0"``; the same names for every transport.
        """
        self._watched[id(transport)] = _Watched(transport, labels, asyncio.get_running_loop())

    def remove(self, transport: HasHealth) -> None:
        """Watch it no longer; nothing happens if it was not watched."""
        self._watched.pop(id(transport), None)

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read transports."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families, one sample per transport."""
        watched = list(self._watched.values())
        fresh = [one.read(self._patience) for one in watched]
        names = ["backend", *sorted({name for one in watched for name in one.labels})]

        def labels(one: _Watched) -> list[str]:
            return [one.last.backend, *(one.labels.get(name, "") for name in names[1:])]

        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"omni_async_{name}", text, labels=names)
            for one in watched:
                counter.add_metric(labels(one), getattr(one.last, name))
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"omni_async_{name}", text, labels=names)
            for one in watched:
                gauge.add_metric(labels(one), getattr(one.last, name))
            yield gauge
        status = GaugeMetricFamily(
            "omni_async_status", "1 for the status a transport is in.", labels=[*names, "status"]
        )
        known = GaugeMetricFamily(
            "omni_async_fresh", "0 when the event loop did not answer the scrape.", labels=names
        )
        for one, answered in zip(watched, fresh, strict=True):
            status.add_metric([*labels(one), one.last.status], 1)
            known.add_metric(labels(one), float(answered))
        yield status
        yield known
        yield from self._streams([(labels(one), one.last) for one in watched], names)

    def _streams(
        self, watched: list[tuple[list[str], Health]], names: list[str]
    ) -> Iterator[Metric]:
        """The families of streams, one sample per transport and edge."""
        names = [*names, "role", "from_stage", "to_stage"]
        found: list[tuple[list[str], StreamHealth]] = []
        for labels, health in watched:
            for streams in health.streams.values():
                found.append(([*labels, streams.role, *streams.edge], streams))
        for name, text in STREAM_COUNTERS.items():
            counter = CounterMetricFamily(
                f"omni_async_stream_{METRIC.get(name, name)}", text, labels=names
            )
            for labels, streams in found:
                counter.add_metric(labels, getattr(streams, name))
            yield counter
        for name, text in STREAM_GAUGES.items():
            gauge = GaugeMetricFamily(f"omni_async_stream_{name}", text, labels=names)
            for labels, streams in found:
                gauge.add_metric(labels, getattr(streams, name))
            yield gauge
        for name, text in STREAM_SPREADS.items():
            histogram = HistogramMetricFamily(f"omni_async_stream_{name}", text, labels=names)
            for labels, streams in found:
                spread: Spread = getattr(streams, name)
                histogram.add_metric(labels, _buckets(spread), spread.total)
            yield histogram


def _buckets(spread: Spread) -> list[tuple[str, float]]:
    """Upper bounds, and how many values do not exceed each."""
    bounds = [*map(floatToGoString, spread.bounds), "+Inf"]
    return list(zip(bounds, accumulate(spread.counts), strict=True))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
