"""What the led process does in the soak of stores: it puts, and goes on whatever happens to the server.

In: a sender, a ledger of what has been received. Out: payloads whose every byte is known; a report.
Never: ends because a put failed in one of this library's errors.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import omni_async
from omni_async.testing.recipes import pattern_array
from omni_async.testing.sides import EDGE, LocalSide
from omni_async.testing.traffic import Ledger

KB, MB = 1 << 10, 1 << 20
SIZES = (4 * KB, 40 * KB, 4 * MB, 16 * KB, 300 * KB, 4 * KB, MB, 64 * KB)
CLEANED = 10
"""Of so many payloads one is not fetched, but cleaned up."""
AHEAD = 3
"""Payloads of a stream that are put before the first of them is fetched."""
LIMIT = 3.0
"""Seconds that each operation has."""
GRACE = 1.0
"""By how much it may be late."""
AGAIN = 0.02


def value_of(number: int) -> dict[str, Any]:
    size = SIZES[number % len(SIZES)]
    return {"n": number, "data": pattern_array(size + number % 100, number), "list": [number] * 9}


def is_cleaned(number: int) -> bool:
    return number % CLEANED == CLEANED - 1


async def put_range(side: LocalSide, start: int, end: int) -> None:
    """Each payload in turn; some are taken back at once."""
    for number in range(start, end):
        key = f"k{number}"
        await side.transport.put(*EDGE, key, value_of(number), timeout=30)
        if is_cleaned(number):
            assert await side.transport.cleanup(key) == 1


class Report:
    """How operations ended."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.late: list[str] = []

    def add(self, what: str, began: float, error: BaseException | None) -> None:
        kind = "done" if error is None else type(error).__name__
        self.ended[kind] += 1
        took = time.monotonic() - began
        if took > LIMIT + GRACE:
            self.late.append(f"{what} ended ({kind}) after {took:.1f} s")


async def put_on(side: LocalSide, path: str, streams: int) -> dict[str, Any]:
    """Put the payloads of all streams, a few ahead of their receiver, until the ledger says it is over."""
    ledger = Ledger(Path(path), streams + 1)
    report = Report()
    await asyncio.gather(
        *(_put_on(side.transport, ledger, stream, streams, report) for stream in range(streams))
    )
    ledger.close()
    return {"ended": dict(report.ended), "late": report.late}


async def _put_on(
    transport: omni_async.Transport, ledger: Ledger, stream: int, over: int, report: Report
) -> None:
    number = 0
    while not ledger[over]:
        number = max(number, ledger[stream])
        if number >= ledger[stream] + AHEAD:
            await asyncio.sleep(0.001)  # nobody tells of the other process's progress
            continue
        began = time.monotonic()
        try:
            await transport.put(*EDGE, key_of(stream, number), value_of(number), timeout=LIMIT)
        except omni_async.OmniAsyncError as error:
            report.add(f"put {stream}/{number}", began, error)
            await asyncio.sleep(AGAIN)
        else:
            report.add(f"put {stream}/{number}", began, None)
            number += 1


def key_of(stream: int, number: int) -> str:
    return f"s{stream}-{number}"
