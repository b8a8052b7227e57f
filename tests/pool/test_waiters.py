"""The line for space: order, deadlines, leaving."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from omni_async.errors import ClosedError, PoolExhausted
from omni_async.pool.waiters import Line


class Shop:
    """So many units of something."""

    def __init__(self, stock: int = 0) -> None:
        self.stock = stock
        self.served: list[int] = []
        self.returned: list[int] = []
        self.on_grant: Callable[[], None] | None = None
        self.line: Line[int] = Line(self.grant, self.take_back)

    def grant(self, wanted: int) -> int | None:
        if self.on_grant is not None:
            self.on_grant()
        if wanted < 0:
            raise RuntimeError("no such thing")
        if wanted > self.stock:
            return None
        self.stock -= wanted
        self.served.append(wanted)
        return wanted

    def take_back(self, units: int) -> None:
        self.returned.append(units)
        self.stock += units
        self.line.serve()

    def deliver(self, units: int) -> None:
        self.stock += units
        self.line.serve()

    def want(
        self, units: int, *, deadline: float | None = None, owner: str | None = None
    ) -> asyncio.Task[int]:
        return asyncio.get_running_loop().create_task(
            self.line.wait(
                units, deadline=deadline, owner=owner, expired=lambda: PoolExhausted("too late")
            )
        )


async def _turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_first_come_first_served() -> None:
    shop = Shop()
    tasks = [shop.want(n) for n in (3, 1, 2)]
    await _turns()
    assert len(shop.line) == 3
    shop.deliver(2)  # enough for the second and for the third, but the first is first
    assert shop.served == []
    shop.deliver(1)
    assert shop.served == [3]
    shop.deliver(3)
    assert await asyncio.gather(*tasks) == [3, 1, 2]
    assert len(shop.line) == 0


async def test_the_deadline_of_the_head_lets_the_next_one_through() -> None:
    shop = Shop(stock=1)
    loop = asyncio.get_running_loop()
    big = shop.want(5, deadline=loop.time() + 0.01)
    small = shop.want(1, deadline=loop.time() + 60)
    assert await small == 1
    with pytest.raises(PoolExhausted, match="too late"):
        await big


async def test_a_cancelled_head_lets_the_next_one_through() -> None:
    shop = Shop(stock=1)
    big, small = shop.want(5), shop.want(1)
    await _turns()
    big.cancel()
    assert await small == 1
    with pytest.raises(asyncio.CancelledError):
        await big
    assert len(shop.line) == 0


async def test_a_cancelled_waiter_in_the_middle_is_gone_at_once() -> None:
    shop = Shop()
    tasks = [shop.want(1) for _ in range(5)]
    await _turns()
    for task in tasks[1:4]:
        task.cancel()
    await _turns()
    assert len(shop.line) == 2
    shop.deliver(2)
    assert [t.result() for t in await _done(tasks[0], tasks[4])] == [1, 1]


async def _done(*tasks: asyncio.Task[int]) -> list[asyncio.Task[int]]:
    await asyncio.wait(tasks)
    return list(tasks)


async def test_what_was_granted_in_the_moment_of_cancellation_goes_to_the_next() -> None:
    shop = Shop()
    first, second = shop.want(2), shop.want(2)
    await _turns()
    shop.deliver(2)  # first's future has its result now, but first did not run yet
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert shop.returned == [2]
    assert await second == 2


async def test_cancelled_before_it_is_served_in_the_same_turn() -> None:
    shop = Shop()
    first, second = shop.want(2), shop.want(2)
    await _turns()
    first.cancel()  # its future is cancelled, it did not run yet and still stands in line
    shop.deliver(2)
    assert await second == 2
    with pytest.raises(asyncio.CancelledError):
        await first
    assert shop.returned == []


async def test_an_error_of_granting_is_the_waiters() -> None:
    shop = Shop()
    bad, good = shop.want(-1), shop.want(1)
    await _turns()
    shop.deliver(1)
    with pytest.raises(RuntimeError, match="no such thing"):
        await bad
    assert await good == 1


async def test_cancel_by_owner() -> None:
    shop = Shop()
    mine = [shop.want(5, owner="me"), shop.want(1, owner="me")]
    yours, nobodys = shop.want(2, owner="you"), shop.want(1)
    await _turns()
    shop.stock = 2
    assert shop.line.cancel("me", ClosedError("gone")) == 2
    errors = await asyncio.gather(*mine, return_exceptions=True)
    assert [str(e) for e in errors] == ["gone", "gone"]
    assert all(isinstance(e, ClosedError) for e in errors)
    assert errors[0] is not errors[1]
    assert await yours == 2  # it is the head now
    assert shop.line.cancel("me", ClosedError()) == 0
    assert shop.line.cancel(None, ClosedError()) == 1
    with pytest.raises(ClosedError):
        await nobodys


async def test_cancelled_by_its_task_and_by_its_owner_at_once() -> None:
    shop = Shop()
    task = shop.want(1, owner="me")
    await _turns()
    task.cancel()
    assert shop.line.cancel("me", ClosedError()) == 1
    with pytest.raises(asyncio.CancelledError):
        await task
    task = shop.want(1, owner="me")
    await _turns()
    shop.line.cancel("me", ClosedError())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_deadline_of_a_waiter_that_was_cancelled_in_the_same_turn() -> None:
    shop = Shop()
    loop = asyncio.get_running_loop()
    task = shop.want(1, deadline=loop.time() - 1)
    await asyncio.sleep(0)  # it stands in line, its timer is due
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(shop.line) == 0


async def test_a_deadline_and_a_cancellation_that_meet() -> None:
    shop = Shop()
    loop = asyncio.get_running_loop()
    for granted in (False, True):
        task = shop.want(1, deadline=loop.time() + 0.005)
        await _turns()
        waiter = next(iter(shop.line._waiting))
        if granted:
            shop.deliver(1)
        else:
            task.cancel()
        shop.line._expire(waiter, PoolExhausted)  # the timer fires before the task has run
        if granted:
            assert await task == 1
        else:
            with pytest.raises(asyncio.CancelledError):
                await task
    assert len(shop.line) == 0


async def test_no_timer_is_left() -> None:
    shop = Shop()
    loop = asyncio.get_running_loop()
    task = shop.want(1, deadline=loop.time() + 3600)
    await _turns()
    shop.deliver(1)
    await task
    scheduled = getattr(loop, "_scheduled", [])  # asyncio's own loop tells
    assert all(handle.cancelled() for handle in scheduled if "_expire" in repr(handle))


async def test_granting_may_give_back_or_cancel() -> None:
    shop = Shop()
    first, second = shop.want(2, owner="a"), shop.want(1, owner="b")
    await _turns()
    shop.on_grant = shop.line.serve  # re-entered: the outer call goes on
    shop.deliver(2)
    assert await first == 2

    def leave() -> None:
        shop.on_grant = None
        shop.line.cancel("b", ClosedError("left"))

    shop.on_grant = leave
    shop.deliver(1)
    with pytest.raises(ClosedError, match="left"):
        await second
    assert shop.returned == [1]
    assert shop.stock == 1

    third = shop.want(-1, owner="b")
    await _turns()
    shop.on_grant = leave
    shop.line.serve()
    with pytest.raises(ClosedError, match="left"):
        await third


async def test_a_coroutine_that_is_thrown_away_leaves_the_line() -> None:
    shop = Shop(stock=1)
    waiting = shop.line.wait(5, deadline=None, owner=None, expired=PoolExhausted)
    waiting.send(None)
    next_one = shop.want(1)
    await _turns()
    waiting.close()
    assert await next_one == 1


def _say_nothing_of_pending_tasks(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_line_of_a_closed_loop_says_nothing() -> None:
    loop = asyncio.new_event_loop()
    shop = Shop()

    async def stand() -> None:
        for n in (1, 2):
            shop.want(n, deadline=loop.time() + 100)
        await _turns()

    loop.run_until_complete(stand())
    assert len(shop.line) == 2
    _say_nothing_of_pending_tasks(loop)
    loop.close()
    shop.stock = 5
    gc.collect()
    assert shop.served == []


async def test_many_cancelled_waiters_cost_nothing() -> None:
    shop = Shop()
    head = shop.want(1)
    tasks = [shop.want(1) for _ in range(5000)]
    await _turns()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(shop.line) == 1
    shop.deliver(1)
    assert await head == 1
