"""Finish before cancel: the operation ends first, and no cancellation gets lost."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from omni_async._aio.finish import finish, finish_all


class Operation:
    """Goes on until it is told to end."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ended = False

    async def run(self) -> str:
        await self.go.wait()
        self.ended = True
        return "result"


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_result() -> None:
    operation = Operation()
    operation.go.set()
    assert await finish(operation.run()) == "result"


async def test_future_that_is_done() -> None:
    future = asyncio.get_running_loop().create_future()
    future.set_result(1)
    assert await finish(future) == 1


async def test_error_of_the_operation() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await finish(fail())


async def test_operation_cancelled_by_somebody_else() -> None:
    operation = Operation()
    inner = asyncio.ensure_future(operation.run())
    outer = asyncio.ensure_future(finish(inner))
    await turns()
    inner.cancel()
    await asyncio.wait([outer])
    assert outer.cancelled()
    if sys.version_info >= (3, 11):
        assert outer.cancelling() == 0  # nobody cancelled the caller


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelled_caller_waits_for_the_end(times: int) -> None:
    operation = Operation()
    task = asyncio.ensure_future(finish(operation.run()))
    await turns()
    for _ in range(times):
        task.cancel("why")
        await turns()
    assert not task.done()
    operation.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert operation.ended
    assert task.cancelled()
    if sys.version_info >= (3, 11):
        assert task.cancelling() == times


async def test_message_of_the_cancellation() -> None:
    operation = Operation()
    caught: list[tuple[Any, ...]] = []

    async def caller() -> None:
        try:
            await finish(operation.run())
        except asyncio.CancelledError as error:
            caught.append(error.args)
            raise

    task = asyncio.ensure_future(caller())
    await turns()
    task.cancel("why")
    await turns()
    operation.go.set()
    await asyncio.wait([task])
    assert caught == [("why",)]


async def test_cancelled_caller_of_a_failing_operation() -> None:
    """Cancelled is what the caller was; the error is no 'never retrieved' either."""
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    go = asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise KeyError("x")

    task = asyncio.ensure_future(finish(fail()))
    await turns()
    task.cancel()
    await turns()
    go.set()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    gc.collect()
    await turns()
    assert seen == []


async def test_cancelled_in_the_turn_in_which_it_ends() -> None:
    operation = Operation()
    task = asyncio.ensure_future(finish(operation.run()))
    await turns()
    operation.go.set()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert operation.ended


if sys.version_info >= (3, 11):

    async def test_inside_a_timeout() -> None:
        operation = Operation()
        asyncio.get_running_loop().call_later(0.05, operation.go.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await finish(operation.run())
        assert operation.ended
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    async def test_inside_a_task_group() -> None:
        operation = Operation()

        async def fail() -> None:
            raise ZeroDivisionError

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(finish(operation.run()))
                tasks.create_task(fail())

        asyncio.get_running_loop().call_later(0.02, operation.go.set)
        with pytest.raises(ExceptionGroup) as caught:  # noqa: F821
            await group()
        assert operation.ended
        assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


async def test_all_hurries_once_and_waits_for_everybody() -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(3)]
    futures[0].set_exception(KeyError("x"))
    hurried: list[int] = []
    task = asyncio.ensure_future(finish_all(futures, lambda: hurried.append(1)))
    await turns()
    futures[1].set_result(None)
    task.cancel()
    await turns()
    task.cancel()
    await turns()
    assert not task.done()
    futures[2].set_result(None)
    await asyncio.wait([task])
    assert task.cancelled()
    assert hurried == [1]


async def test_all_leaves_outcomes_in_the_futures() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    future.set_exception(KeyError("x"))
    await finish_all([future])
    assert isinstance(future.exception(), KeyError)
    await finish_all([])


async def test_no_cycle_keeps_what_the_caller_held() -> None:
    import weakref

    class Big:
        pass

    operation = Operation()

    async def caller(big: Big) -> None:
        await finish(operation.run())

    big = Big()
    gone = weakref.ref(big)
    gc.collect()
    gc.disable()
    try:
        task = asyncio.ensure_future(caller(big))
        del big
        await turns()
        task.cancel()
        await turns()
        operation.go.set()
        await asyncio.wait([task])
        del task
        await turns()
        assert gone() is None
    finally:
        gc.enable()
