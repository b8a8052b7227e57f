"""The pieces of the benchmarks: numbers, tables, sizes, payloads, the line."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from omni_async.cli.bench.figures import Goal, duration, machine, quantile, summary, table
from omni_async.cli.bench.line import Line, LineClosed
from omni_async.cli.bench.payload import SIZES, parse_size, size_name


def test_quantiles_are_values_of_the_series() -> None:
    series = list(range(1, 1001))
    assert [quantile(series, share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [
        1,
        500,
        990,
        999,
        1000,
    ]
    assert quantile([7], 0.999) == 7


def test_a_summary_is_in_microseconds() -> None:
    figures = summary([1000, 3000, 2000])
    assert figures == (2.0, 3.0, 1.0, 3.0, 3)
    assert figures.as_dict() == {
        "median_us": 2.0,
        "p99_us": 3.0,
        "min_us": 1.0,
        "max_us": 3.0,
        "count": 3,
    }


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (1.26, "1.3 us"),
        (123.4, "123 us"),
        (1234.0, "1.23 ms"),
        (12_345.0, "12.3 ms"),
        (123_456.0, "123 ms"),
    ],
)
def test_durations_for_people(us: float, text: str) -> None:
    assert duration(us) == text


def test_goals_say_what_was_wanted_and_what_came() -> None:
    faster = Goal("4 KB", "at least", 3.0, 4.5, "times")
    slower = Goal("lag", "at most", 10.0, 12.0, "ms")
    assert (faster.met, slower.met) == (True, False)
    assert str(faster) == "met     4 KB: 4.5 times (at least 3 times)"
    assert str(slower).startswith("MISSED")
    assert faster.as_dict()["met"] is True


def test_a_table_is_aligned() -> None:
    lines = table(["name", "a"], [["x", "10"], ["longer", "7"]]).splitlines()
    assert lines == ["name     a", "----------", "x       10", "longer   7"]


def test_the_machine_is_described() -> None:
    assert machine()["cpus"] >= 1


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4K", 4096), ("64kb", 65536), ("1M", 1 << 20), ("8192", 8192), ("1G", 1 << 30)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "0", "-4K", "1.5M", "100", "4X"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|multiple"):
        parse_size(text)


def test_names_of_sizes() -> None:
    assert [size_name(nbytes) for nbytes in (*SIZES.values(), 5000)] == [
        "4 KB",
        "64 KB",
        "1 MB",
        "16 MB",
        "186 MB",
        "5000 B",
    ]


def test_payloads_are_checked() -> None:
    torch = pytest.importorskip("torch")
    from omni_async.cli.bench.payload import (
        Mismatch,
        check,
        hidden_states,
        raw,
        stamp,
        touch,
        value,
    )

    sent, reference = hidden_states(8192), hidden_states(8192)
    assert torch.equal(raw(sent), raw(reference))
    assert sent.shape == (2, 2048)
    stamp(sent, 5)
    check(value(sent), reference, 5, whole=True)
    check(raw(sent), reference, 5, whole=True)
    assert touch(value(sent)) == touch(raw(sent))
    with pytest.raises(Mismatch, match="another one"):
        check(value(sent), reference, 6, whole=False)
    with pytest.raises(Mismatch, match="codec"):
        check({**value(sent), "codec": []}, reference, 5, whole=True)
    with pytest.raises(Mismatch, match="float16"):
        check({**value(sent), "hidden_states": sent.half()}, reference, 5, whole=False)
    raw(sent)[100] ^= 1
    with pytest.raises(Mismatch, match="bytes"):
        check(value(sent), reference, 5, whole=True)


def test_a_line_carries_values_whole_and_in_order() -> None:
    left, right = map(Line, socket.socketpair())
    values = [None, 1, {"a": ["x" * 200_000]}, "end"]

    def send() -> None:
        for value in values:
            left.send(value)

    sending = threading.Thread(target=send)
    sending.start()
    assert [right.receive(5) for _ in values] == values
    sending.join()
    with pytest.raises(TimeoutError):
        right.receive(0.01)
    left.close()
    with pytest.raises(LineClosed):
        right.receive(1)
    right.close()


async def test_a_line_on_a_loop() -> None:
    left, right = map(Line, socket.socketpair())
    value = {"a": ["x" * 500_000]}
    received, _ = await asyncio.gather(right.receive_async(), left.send_async(value))
    assert received == value
    left.close()
    with pytest.raises(LineClosed):
        await right.receive_async()
    right.close()
