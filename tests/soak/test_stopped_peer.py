"""A peer that is stopped for longer than anybody waits: who waits for it is told in time, nobody else notices.

In: a number of rounds. Out: errors that name the peer, times of another peer beside and without it.
Never: compares with another machine; rounds with and without the stopped one take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

import omni_async
from omni_async.errors import PoolExhausted, TransferTimeout
from omni_async.testing.leaks import quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import literal, pattern, pattern_array
from omni_async.testing.rig import settle
from omni_async.testing.sides import LocalSide, RemoteSide
from omni_async.testing.traffic import latencies, produce
from tests.ends import ends, led

DEADLINE = 1.0
"""Seconds that a get waits here."""
LATE = 0.5
"""Seconds that its error may be late, on a busy machine."""
WAITING = 20
CLAIMED = 4
NBYTES = 32 << 20
"""Of a payload that is on its way when its peer is stopped."""
POOL = 384 << 20
PRODUCE = "omni_async.testing.traffic:produce"

# The gets of the other peer take about as long, in the long form, as the one that is stopped.
ROUNDS = pytest.mark.parametrize(
    ("rounds", "count", "slower"),
    [
        pytest.param(1, 100, 5.0, id="short"),
        pytest.param(20, 400, 1.5, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)

WAYS = pytest.mark.parametrize(
    ("connector", "tls"),
    [
        ("mooncake", ""),
        pytest.param("nixl", "", marks=pytest.mark.soak),
        pytest.param("nixl", "tcp", marks=pytest.mark.soak),
    ],
    ids=["mooncake", "nixl", "nixl-tcp"],
)


@WAYS
@ROUNDS
async def test_a_stopped_sender(
    namespace: str,
    rounds: int,
    count: int,
    slower: float,
    connector: str,
    tls: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if tls:
        monkeypatch.setenv("UCX_TLS", tls)
    with ends(connector, namespace, memory_pool_size=POOL) as here:
        async with led() as bad, led() as good, here.open("receiver", "1") as rx:
            slow = await here.away(bad, "sender", "0")
            steady = await here.away(good, "sender", "0", rank=1)
            await slow.put("first", literal(1))
            await rx.get("0", "1", "first")  # so it is known by more than its port
            times = Times()
            for turn in range(rounds):
                start, middle = 2 * turn * count, (2 * turn + 1) * count
                await steady.use(PRODUCE, starts=[start], total=middle)
                arguments: tuple[Any, ...] = (LocalSide(rx), 0, start, count, here.at("0", 1))
                times.alone += await latencies(*arguments)
                # Put in two halves: there is a limit to what is offered before anybody asks.
                await steady.use(PRODUCE, starts=[middle], total=middle + count)
                for number in range(CLAIMED):
                    await slow.put(f"claimed-{number}", pattern(NBYTES, number))
                with _stopped(bad):
                    waiting = asyncio.create_task(_waiters(rx, bad))
                    arguments = (LocalSide(rx), 0, middle, count, here.at("0", 1))
                    times.beside += await latencies(*arguments)
                    await waiting
                await settle(slow, pool_used=None, within=5)
                for number in range(CLAIMED):
                    delivery = await rx.get("0", "1", f"claimed-{number}", timeout=10)
                    assert (delivery.value == pattern_array(NBYTES, number)).all()
                    del delivery
                await quiet(rx, within=5)
            times.tell("a stopped sender", slower)


async def _waiters(rx: omni_async.Transport, bad: PeerProcess) -> None:
    """Gets of a stopped sender, those whose payloads were under way included: each fails in time."""
    gets = [_fails(rx, f"claimed-{number}", bad) for number in range(CLAIMED)]
    gets += [_fails(rx, f"never-{number}", bad) for number in range(WAITING)]
    await asyncio.gather(*gets)


async def _fails(rx: omni_async.Transport, key: str, bad: PeerProcess) -> None:
    began = time.monotonic()
    with pytest.raises(TransferTimeout) as caught:
        await rx.get("0", "1", key, timeout=DEADLINE)
    took = time.monotonic() - began
    assert DEADLINE * 0.9 < took < DEADLINE + LATE, f"{key} failed after {took:.2f} s"
    assert str(bad.pid) in str(caught.value)
    assert str(bad.pid) in str(caught.value.peer)


@WAYS
@ROUNDS
async def test_a_stopped_receiver(
    namespace: str,
    rounds: int,
    count: int,
    slower: float,
    connector: str,
    tls: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it holds stays its own; a put that finds no room because of it says so."""
    if tls:
        monkeypatch.setenv("UCX_TLS", tls)
    with ends(connector, namespace, memory_pool_size=POOL) as here:
        async with led() as bad, led() as good, here.open("sender", "0") as tx:
            slow = await here.away(bad, "receiver", "2", sender="0")
            steady = await here.away(good, "receiver", "1", sender="0")
            # The engine opens one peer at a time; one that is stopped in that moment is a case of its own.
            await tx.put("0", "2", "first", pattern_array(100_000, 1))
            assert (await slow.get("first", pattern(100_000, 1), edge=("0", "2"))).wrong is None
            times = Times()
            for turn in range(rounds):
                start, middle = 2 * turn * count, (2 * turn + 1) * count
                await produce(LocalSide(tx), [start], middle)
                times.alone += await _away(steady, start, count)
                await produce(LocalSide(tx), [middle], middle + count)
                gets = await _under_way(tx, slow)
                with _stopped(bad):
                    refused = asyncio.create_task(_no_room(tx, bad))
                    times.beside += await _away(steady, middle, count)
                    await refused
                for got in await asyncio.gather(*gets):
                    assert got.wrong is None
                await settle(slow, within=5)
            times.tell("a stopped receiver", slower)
            await steady.close()
            await slow.close()


async def _under_way(tx: omni_async.Transport, slow: RemoteSide) -> list[asyncio.Future[Any]]:
    """Payloads of one receiver, just when it begins to pull them."""
    edge = ("0", "2")
    for number in range(CLAIMED):
        await tx.put(*edge, f"claimed-{number}", pattern_array(NBYTES, number))
    gets: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(slow.get(f"claimed-{n}", pattern(NBYTES, n), edge=edge, timeout=30))
        for n in range(CLAIMED)
    ]
    while not tx.health().in_flight:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.001)
    return gets


async def _no_room(tx: omni_async.Transport, bad: PeerProcess) -> None:
    """What the stopped one holds is not given away, and its put's error says who holds it."""
    await asyncio.sleep(0.05)
    if not tx.health().in_flight:
        return  # all had arrived before it was stopped
    began = time.monotonic()
    with pytest.raises(PoolExhausted) as caught:
        await tx.put("0", "2", "too much", bytes(POOL - NBYTES // 2), timeout=DEADLINE)
    assert time.monotonic() - began < DEADLINE + LATE
    assert str(bad.pid) in str(caught.value)


class Times:
    """Seconds of another peer's gets."""

    def __init__(self) -> None:
        self.alone: list[float] = []
        self.beside: list[float] = []

    def tell(self, what: str, slower: float) -> None:
        alone, beside = _p99(self.alone), _p99(self.beside)
        print(  # noqa: T201
            f"beside {what}: p99 of the other {beside * 1e3:.2f} ms, {alone * 1e3:.2f} ms without "
            f"({beside / alone:.2f} times, {len(self.alone)} gets each)"
        )
        assert beside <= alone * slower


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


@contextlib.contextmanager
def _stopped(peer: PeerProcess) -> Iterator[None]:
    peer.stop()
    try:
        yield
    finally:
        peer.resume()


async def _away(side: RemoteSide, start: int, count: int) -> list[float]:
    taken: list[float] = await side.use(
        "omni_async.testing.traffic:latencies", stream=0, start=start, count=count
    )
    return taken
