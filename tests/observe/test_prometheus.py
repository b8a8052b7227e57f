"""Scrapes read health on the transport's own loop, from any thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import urllib.request

import pytest

import omni_async
from omni_async.model import Health, StreamHealth
from omni_async.observe.streams import SECONDS

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from omni_async.observe.prometheus import (  # noqa: E402
    COUNTERS,
    GAUGES,
    STREAM_COUNTERS,
    STREAM_GAUGES,
    STREAM_SPREADS,
    TransportCollector,
)


class Sick:
    """A transport's health, and the thread that asked for it."""

    def __init__(self, **numbers: int) -> None:
        self.numbers = numbers
        self.threads: list[threading.Thread] = []

    def health(self) -> Health:
        self.threads.append(threading.current_thread())
        return Health(status="healthy", backend="shm", **self.numbers)  # type: ignore[arg-type]


def scrape(collector: TransportCollector) -> dict[str, float]:
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    text = prometheus_client.generate_latest(registry).decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(number) for name, _, number in lines}


async def test_every_number_of_health_is_exported_with_its_labels() -> None:
    collector = TransportCollector()
    one = Sick(puts=3, bytes_transferred=4096, parked=2, pool_used=64)
    collector.add(one, stage="0", rank="1")
    seen = scrape(collector)
    labels = '{backend="shm",rank="1",stage="0"}'
    assert seen[f"omni_async_puts_total{labels}"] == 3
    assert seen[f"omni_async_bytes_transferred_total{labels}"] == 4096
    assert seen[f"omni_async_parked{labels}"] == 2
    assert seen[f"omni_async_pool_used{labels}"] == 64
    assert seen[f"omni_async_fresh{labels}"] == 1
    assert seen['omni_async_status{backend="shm",rank="1",stage="0",status="healthy"}'] == 1
    numbers = {
        field for field in Health.__struct_fields__ if isinstance(getattr(one.health(), field), int)
    }
    assert numbers == {*COUNTERS, *GAUGES}


async def test_another_thread_gets_the_numbers_from_the_loop() -> None:
    collector = TransportCollector()
    one = Sick(puts=1)
    collector.add(one)
    one.numbers["puts"] = 2
    seen = await asyncio.to_thread(scrape, collector)
    assert seen['omni_async_puts_total{backend="shm"}'] == 2
    assert set(one.threads) == {threading.current_thread()}


async def test_a_busy_loop_is_reported_with_its_last_numbers() -> None:
    collector = TransportCollector(patience=0.01)
    one = Sick(puts=1)
    collector.add(one)
    one.numbers["puts"] = 2
    found: list[dict[str, float]] = []
    thread = threading.Thread(target=lambda: found.append(scrape(collector)))
    thread.start()
    thread.join(10)  # the loop answers nobody meanwhile
    assert found[0]['omni_async_puts_total{backend="shm"}'] == 1
    assert found[0]['omni_async_fresh{backend="shm"}'] == 0
    asked = len(one.threads)
    await asyncio.sleep(0)
    assert len(one.threads) == asked  # the late turn of the loop finds the question withdrawn


async def test_an_error_of_health_reaches_the_scrape() -> None:
    collector = TransportCollector()
    one = Sick()
    collector.add(one)
    one.numbers["nonsense"] = 1
    with pytest.raises(TypeError, match="nonsense"):
        await asyncio.to_thread(scrape, collector)


def test_a_closed_loop_keeps_its_last_numbers() -> None:
    collector = TransportCollector()

    async def main() -> None:
        collector.add(Sick(gets=5))

    asyncio.run(main())
    seen = scrape(collector)
    assert seen['omni_async_gets_total{backend="shm"}'] == 5
    assert seen['omni_async_fresh{backend="shm"}'] == 0


async def test_removed_means_gone() -> None:
    collector = TransportCollector()
    one = Sick()
    collector.add(one)
    collector.remove(one)
    collector.remove(one)
    assert scrape(collector) == {}


def test_without_the_extra_the_error_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['prometheus_client.core'] = None\n"
        "from omni_async.errors import BackendUnavailable\n"
        "try:\n    import omni_async.observe.prometheus\n"
        "except BackendUnavailable as error:\n    print(error.remedy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "pip install 'omni-async[prometheus]'\n", done.stderr


async def test_streams_are_scraped_over_http(namespace: str) -> None:
    registry = prometheus_client.CollectorRegistry()
    collector = TransportCollector()
    registry.register(collector)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    try:
        async with (
            omni_async.open_transport("memory", role="sender", stage=0, namespace=namespace) as tx,
            omni_async.open_transport(
                "memory", role="receiver", stage=1, namespace=namespace
            ) as rx,
        ):
            collector.add(tx, pipeline="speech")
            collector.add(rx, pipeline="speech")
            async with rx.edge(0, 1).stream("r") as reader, tx.edge(0, 1).stream("r") as writer:
                for size in (10, 2000, 7000):
                    await writer.send(b"x" * size)
                for _ in range(2):
                    await reader.read()
                text = await asyncio.to_thread(_fetched, url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    found = {
        (sample.name, sample.labels["role"], sample.labels.get("le")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("omni_async_stream_")
    }

    def value(name: str, role: str, le: str | None = None) -> float:
        sample = found[f"omni_async_stream_{name}", role, le]
        assert sample.labels["pipeline"] == "speech"
        assert (sample.labels["from_stage"], sample.labels["to_stage"]) == ("0", "1")
        return float(sample.value)

    assert (value("chunks_total", "sender"), value("chunks_total", "receiver")) == (3, 2)
    assert value("bytes_total", "sender") > 9010
    assert value("queued", "receiver") == 1
    assert value("credits", "receiver") > 0
    assert value("opened_total", "receiver") == 1
    for name in ("finished", "aborted", "left", "failures", "drops", "stalls", "stalled_seconds"):
        assert value(f"{name}_total", "sender") == 0
    assert value("first_chunk_seconds_count", "receiver") == 1
    assert value("chunk_seconds_count", "receiver") == 2
    assert 0 < value("chunk_seconds_sum", "receiver") < 30
    counts = [value("chunk_seconds_bucket", "receiver", str(bound)) for bound in SECONDS]
    assert counts == sorted(counts)
    assert value("chunk_seconds_bucket", "receiver", "+Inf") == 2
    sizes = [value("chunk_bytes_bucket", "sender", le) for le in ("1024.0", "4096.0", "16384.0")]
    assert sizes == [1, 2, 3]


def _fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_every_number_of_a_stream_is_exported() -> None:
    known = {*STREAM_COUNTERS, *STREAM_GAUGES, *STREAM_SPREADS, "role", "edge"}
    assert known == set(StreamHealth.__struct_fields__)
