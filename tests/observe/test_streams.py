"""What streams say of themselves, without a stream."""

from __future__ import annotations

import re
from pathlib import Path
from time import monotonic_ns

import pytest

from omni_async.errors import (
    ClosedError,
    OmniAsyncError,
    PeerLost,
    StreamAborted,
    StreamClosed,
    StreamStalled,
    TransferCancelled,
)
from omni_async.model import EdgeName, Health, Spread, StreamHealth, TransferKey
from omni_async.observe import clock
from omni_async.observe.streams import BYTES, SECONDS, EdgeMeter, StreamMeters

EDGE = EdgeName("0", "1")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    return [re.sub(r"seconds=[\d.e-]+", "seconds=…", line) for line in lines]


def test_a_reader_s_stream_is_told_with_edge_and_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "omni_async"):
        stream = EdgeMeter(EDGE, "receiver").open("req-1")
        stream.took(5)
        stream.took(5)
        stream.end(None, 2)
        stream.end(ClosedError("late"), 2)
        stream.leave(2)
    names = "edge='0->1' request='req-1' role='receiver'"
    assert told(caplog) == [
        f"DEBUG stream.open {names}",
        f"DEBUG stream.first_chunk {names} seconds=…",
        f"DEBUG stream.finish {names} chunks=2 seconds=…",
    ]
    assert {record.name for record in caplog.records} == {"omni_async.streams"}


@pytest.mark.parametrize(
    ("error", "event", "counter"),
    [
        (StreamAborted("x", reason="x"), "INFO stream.abort", "aborted"),
        (TransferCancelled("x"), "INFO stream.abort", "aborted"),
        (StreamClosed("x"), "INFO stream.leave", "left"),
        (PeerLost("x"), "WARNING stream.fail", "failures"),
        (StreamStalled("x"), "WARNING stream.fail", "failures"),
    ],
)
def test_an_end_is_told_by_what_it_is(
    caplog: pytest.LogCaptureFixture, error: OmniAsyncError, event: str, counter: str
) -> None:
    meter = EdgeMeter(EDGE, "sender")
    with caplog.at_level("INFO", "omni_async"):
        meter.open("r").end(error, 3, dropped=2)
    assert told(caplog) == [
        f"{event} edge='0->1' request='r' role='sender' chunks=3 seconds=… dropped=2 "
        f"error='{type(error).__name__}' reason='x'"
    ]
    seen = meter.snapshot(0, 0, 0)
    counts = (seen.finished, seen.aborted, seen.left, seen.failures)
    assert (sum(counts), getattr(seen, counter), seen.drops) == (1, 1, 2)
    assert seen.stalls == isinstance(error, TimeoutError)


def test_leaving_and_dropping(caplog: pytest.LogCaptureFixture) -> None:
    meter = EdgeMeter(EDGE, "receiver")
    with caplog.at_level("INFO", "omni_async"):
        stream = meter.open("r")
        stream.dropped(2, "stale")
        stream.leave(1, dropped=3)
        stream.leave(1, dropped=3)
        meter.open("quiet").end(None, 0)
    names = "edge='0->1' request='r' role='receiver'"
    assert told(caplog) == [
        f"WARNING stream.drop {names} count=2 reason='stale'",
        f"INFO stream.leave {names} chunks=1 seconds=… dropped=3",
    ]
    seen = meter.snapshot(0, 0, 0)
    assert (seen.left, seen.drops, seen.finished) == (1, 5, 1)


def test_bounds_reach_from_50_us_to_60_s_and_hold_the_peer_s() -> None:
    assert (SECONDS[0], SECONDS[-1]) == (50e-6, 60.0)
    peer = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
    assert set(peer) <= set(SECONDS)
    assert tuple(sorted(SECONDS)) == SECONDS
    assert (BYTES[0], BYTES[-1]) == (1024, 256 << 20)


def test_numbers_of_an_edge() -> None:
    meters = StreamMeters("receiver")
    edge = meters.edge(EDGE)
    assert meters.edge(EDGE) is edge
    stream = edge.open("a")
    now = monotonic_ns()
    for ago in (10_000, 75_000, 70_000_000_000):
        stream.took(1024, now - ago)
    stream.took(1025, 0)
    stream.stalled(now - 2_000_000_000)

    class Open:
        queued, in_flight, credits = 1, 2, 3

    where = TransferKey(*EDGE, "a")
    seen = meters.snapshot([(where, Open()), (where, Open())])["0->1"]
    assert (seen.opened, seen.chunks, seen.nbytes, seen.stalls) == (1, 4, 4097, 1)
    assert (seen.queued, seen.in_flight, seen.credits) == (2, 4, 6)
    assert seen.stalled_seconds == pytest.approx(2, abs=0.5)
    assert seen.chunk_bytes.counts[:2] == (3, 1)
    assert seen.chunk_bytes.total == 4097
    assert seen.chunk_seconds.count == 3
    assert seen.chunk_seconds.counts[-1] == 1
    assert seen.chunk_seconds.total == pytest.approx(70, abs=0.5)
    assert seen.first_chunk_seconds.count == 1


def test_health_is_flat_with_streams() -> None:
    times = Spread((0.001, 0.002), (0, 2, 0), 0.003)
    streams = StreamHealth(
        role="sender",
        edge=EDGE,
        chunks=7,
        first_chunk_seconds=times,
        chunk_seconds=times,
        chunk_bytes=Spread((1024.0,), (7, 0), 70.0),
    )
    health = Health(
        status="healthy", backend="x", streams={"0->1": streams}, extra={"of": "the backend"}
    )
    flat = health.as_dict()
    assert flat["stream.0->1.chunks"] == 7
    assert flat["stream.0->1.chunk_seconds.count"] == 2
    assert flat["stream.0->1.chunk_seconds.sum"] == 0.003
    assert flat["stream.0->1.chunk_seconds.p50"] == pytest.approx(0.0015)
    assert flat["of"] == "the backend"
    assert not {"streams", "extra", "stream.0->1.role"} & set(flat)
    assert all(isinstance(value, (int, float, str, type(None))) for value in flat.values())


def test_quantiles_lie_in_their_bucket() -> None:
    spread = Spread((1.0, 2.0, 4.0), (10, 0, 80, 10), 300.0)
    assert spread.quantile(0.05) == pytest.approx(0.5)
    assert spread.quantile(0.1) == 1.0
    assert spread.quantile(0.5) == pytest.approx(3.0)
    assert spread.quantile(0.99) == 4.0  # above the last bound nothing is known
    assert Spread((1.0,), (0, 0), 0.0).quantile(0.5) == 0.0


def test_a_clock_is_known_by_its_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ask = clock.clock_id.__wrapped__
    here = ask()
    assert 0 <= here < 1 << 48
    monkeypatch.setattr(clock, "NAMESPACE", "/proc/self/ns/none")
    (tmp_path / "boot").write_text("one\n")
    monkeypatch.setattr(clock, "BOOT", str(tmp_path / "boot"))
    one = ask()
    assert one == ask() != here
    monkeypatch.setattr(clock, "BOOT", "/proc/none")
    assert ask() == 0
