"""Tests of any engine that writes, its two ends in one process: many at once, cancellation, what is refused.

In: the fixture ``written``, two ends. Out: test cases, for a class whose name begins with ``Test`` to inherit.
Never: knows whose engines they are.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omni_async.errors import EngineFault

from .engine_pair import MIB, SIZE, Both


class Writes:
    """Writes between two ends."""

    async def test_what_is_not_known(self, written: Both[Any]) -> None:
        both = written
        with pytest.raises(EngineFault, match="no region 2"):
            await both.write(both.move(0, 0, 1)._replace(region=2))
        with pytest.raises(EngineFault, match="not known"):
            await both.sender.write("somebody", [both.move(0, 0, 1)], both.regions)
        both.sender.part("r")
        both.sender.part("r")
        with pytest.raises(EngineFault, match="not known"):
            await both.write(both.move(0, 0, 1))

    async def test_a_second_line_to_a_peer(self, written: Both[Any]) -> None:
        """A receiver dials again before the end of its old line was noticed."""
        both = written
        contact = both.sender._contacts["r"]
        both.sender.meet("r", both.receiver.describe())
        both.sender.part("r")
        await both.write(both.move(0, 0, 1))
        assert both.sender._contacts["r"] is contact

    async def test_256_at_once(self, written: Both[Any]) -> None:
        """Every one arrives, in its place, and nothing is left to be asked about."""
        both = written
        step = SIZE // 256
        for number in range(256):
            both.source.view(number * step, step)[:] = bytes([number]) * step

        async def one(number: int) -> None:
            await both.write(both.move(number * step, (255 - number) * step, step))

        await asyncio.gather(*map(one, range(256)))
        for number in range(256):
            assert bytes(both.target.view((255 - number) * step, step)) == bytes([number]) * step
        assert len(both.sender._watch) == 0

    async def test_the_loop_goes_on_meanwhile(self, written: Both[Any]) -> None:
        both = written
        both.source.view()[:] = b"\1" * SIZE
        turns = 0
        writing = asyncio.gather(
            *(both.write(both.move(n * 16 * MIB, n * 16 * MIB, 16 * MIB)) for n in range(4))
        )
        while not writing.done():
            await asyncio.sleep(0.001)
            turns += 1
        await writing
        assert turns > 3  # a call that blocked would let it have one
        assert bytes(both.target.view()) == b"\1" * SIZE

    async def test_a_cancelled_write_goes_on(self, written: Both[Any]) -> None:
        """Whoever waited is free at once; the engine's own books are closed in the end."""
        both = written
        both.source.view()[:] = b"\2" * SIZE
        await both.write(both.move(0, 0, 1))
        task = asyncio.create_task(both.write(both.move(0, 0, SIZE)))
        await asyncio.sleep(0)  # it has begun
        assert len(both.sender._watch) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while len(both.sender._watch):  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.001)
        assert bytes(both.target.view()) == b"\2" * SIZE
