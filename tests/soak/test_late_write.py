"""A write that comes late: its sender was stopped in the middle of it, its receiver has given it up.

In: a number of repetitions. Out: not one wrong byte in anything that was delivered; quarantine at zero.
Never: stops at a convenient moment.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

import omni_async
from omni_async.errors import PeerLost, TransferTimeout
from omni_async.testing.leaks import quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern, pattern_array
from omni_async.testing.rig import settle
from omni_async.testing.sides import RemoteSide
from tests.ends import Ends, ends, led

NBYTES = 24 << 20
"""Of what may come late: some ten milliseconds of writing."""
OTHERS = 6
POOL = 256 << 20
GIVEN_UP = 2.5
"""``peer_timeout``: a sender that is stopped for longer is given up, and its slots are revoked."""
LONG_STOPS = 10
"""One in so many repetitions stops that long."""
IN_TIME = 5.0
"""Seconds in which quarantine has to be over, once the sender goes on."""


class Tally:
    """What became of the gets."""

    def __init__(self) -> None:
        self.delivered = self.timed_out = self.cancelled = self.lost = 0
        self.longest = 0.0

    def __str__(self) -> str:
        return (
            f"{self.delivered} delivered, {self.timed_out} timed out, {self.cancelled} cancelled, "
            f"{self.lost} lost; quarantine over at most {self.longest:.2f} s after the sender went on"
        )


@pytest.mark.parametrize(
    "repetitions",
    [
        pytest.param(6, id="short"),
        pytest.param(200, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize(
    ("connector", "tls"),
    [
        ("mooncake", ""),
        pytest.param("nixl", "", marks=pytest.mark.soak),
        pytest.param("nixl", "tcp", marks=pytest.mark.soak),
        pytest.param("mori-on-double", "", marks=pytest.mark.soak),
    ],
    ids=["mooncake", "nixl", "nixl-tcp", "mori"],
)
async def test_no_late_byte_lands_in_another_payload(
    namespace: str, repetitions: int, connector: str, tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tls:
        monkeypatch.setenv("UCX_TLS", tls)
    chance, tally = random.Random(repetitions), Tally()
    with ends(connector, namespace, memory_pool_size=POOL, peer_timeout=GIVEN_UP) as here:
        async with led() as stopped, led() as steady, here.open("receiver", "1") as rx:
            slow = await here.away(stopped, "sender", "0")
            other = await here.away(steady, "sender", "0", rank=1)
            for number in range(repetitions):
                await _repeat(here, rx, stopped, slow, other, number, chance, tally)
            for side in (slow, other):
                await side.close()
    print(f"{repetitions} repetitions: {tally}")  # noqa: T201
    assert tally.timed_out + tally.cancelled + tally.lost >= repetitions // 4, tally


async def _repeat(
    here: Ends,
    rx: omni_async.Transport,
    stopped: PeerProcess,
    slow: RemoteSide,
    other: RemoteSide,
    number: int,
    chance: random.Random,
    tally: Tally,
) -> None:
    key, long_stop = f"late-{number}", number % LONG_STOPS == LONG_STOPS // 2
    await slow.put(key, pattern(NBYTES, number))
    limit = 4 * GIVEN_UP if long_stop else chance.choice((0.02, 0.05, None))
    getting = asyncio.create_task(_outcome(rx, key, number, limit, tally))
    await asyncio.sleep(chance.random() ** 2 * 0.04)
    stopped.stop()
    try:
        if limit is None:
            await asyncio.sleep(chance.random() * 0.02)
            getting.cancel()
        await asyncio.wait({getting})
        if not getting.cancelled():
            getting.result()
        else:
            tally.cancelled += 1
        kept = await _others(here, rx, other, number)
        _right(kept, number)
    finally:
        stopped.resume()
    began = time.monotonic()
    _right(kept, number)
    await settle(slow, pool_used=None, within=IN_TIME)
    await quiet(rx, pool_used=None, within=IN_TIME)  # quarantine is over
    tally.longest = max(tally.longest, time.monotonic() - began)
    _right(kept, number)
    kept.clear()
    await slow.cleanup(key)
    await quiet(rx, within=IN_TIME)
    await settle(slow, within=IN_TIME)


async def _outcome(
    rx: omni_async.Transport, key: str, seed: int, limit: float | None, tally: Tally
) -> None:
    try:
        delivery = await rx.get("0", "1", key, timeout=limit)
    except TransferTimeout:
        tally.timed_out += 1
    except PeerLost:
        tally.lost += 1
    else:
        assert (delivery.value == pattern_array(NBYTES, seed)).all(), "a delivery is wrong"
        tally.delivered += 1


async def _others(
    here: Ends, rx: omni_async.Transport, other: RemoteSide, number: int
) -> dict[int, Any]:
    """Payloads of another sender, which take the memory that is free now."""
    for index in range(OTHERS):
        await other.put(f"other-{index}", pattern(NBYTES, _seed(number, index)))
    gets = (
        rx.get("0", "1", f"other-{index}", here.at("0", 1), timeout=20) for index in range(OTHERS)
    )
    return dict(enumerate(await asyncio.gather(*gets)))


def _right(kept: dict[int, Any], number: int) -> None:
    for index, delivery in kept.items():
        expected = pattern_array(NBYTES, _seed(number, index))
        assert (delivery.value == expected).all(), f"a late byte is in payload {index}"


def _seed(number: int, index: int) -> int:
    return 1000 + number * OTHERS + index
