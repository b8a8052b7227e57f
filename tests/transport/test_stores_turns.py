"""Turns: served in their order; who gives up holds up nobody."""

from __future__ import annotations

import asyncio

import pytest

from omni_async.transport.stored.operations import Late, Operations
from omni_async.transport.stored.turns import Turns


async def test_one_after_another() -> None:
    loop = asyncio.get_running_loop()
    turns, operations = Turns(loop), Operations(loop)
    order: list[int] = []

    async def one(number: int) -> None:
        operation = operations.begin(f"k{number}", None)
        turn = await turns.join(operation)
        order.append(number)
        await asyncio.sleep(0)
        turns.leave(turn)
        operations.over(operation)

    await asyncio.gather(*map(one, range(10)))
    assert order == list(range(10))
    assert len(turns) == len(operations) == 0


@pytest.mark.parametrize("how", ["cancelled", "late", "ended"])
async def test_who_gives_up_holds_up_nobody(how: str) -> None:
    loop = asyncio.get_running_loop()
    turns, operations = Turns(loop), Operations(loop)
    first = await turns.join(operations.begin("first", None))
    limit = loop.time() + 0.02 if how == "late" else None
    second = asyncio.ensure_future(turns.join(operations.begin("second", limit)))
    third = asyncio.ensure_future(turns.join(operations.begin("third", None)))
    await asyncio.sleep(0)
    kind: type[BaseException] = Late
    if how == "cancelled":
        second.cancel()
        kind = asyncio.CancelledError
    elif how == "ended":
        operations.cancel("second", ValueError("over"))
        kind = ValueError
    with pytest.raises(kind):
        await second
    assert not third.done()
    turns.leave(first)
    turns.leave(await asyncio.wait_for(third, 5))
    assert len(turns) == 0
    operations.deadlines.close()


async def test_what_is_raised_when_it_is_late_may_be_told() -> None:
    loop = asyncio.get_running_loop()
    turns, operations = Turns(loop), Operations(loop)
    first = await turns.join(operations.begin("first", None))
    with pytest.raises(ValueError, match="mine"):
        await turns.join(operations.begin("second", loop.time()), ValueError("mine"))
    turns.leave(first)
    assert len(turns) == 0
    operations.deadlines.close()
