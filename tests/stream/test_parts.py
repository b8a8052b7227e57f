"""The small parts of the adapter on their own."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from omni_async import ClosedError, StreamFinished, UsageError
from omni_async.stream import Limits
from omni_async.stream.inbox import BUDGET, Inbox
from omni_async.stream.limits import checked_max_active, checked_stall_timeout, size_of
from omni_async.stream.mailbox import Mailbox, Request
from omni_async.stream.stall import StallClock
from omni_async.stream.tasks import Tasks

# --- what a caller may ask for --------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, -0.1, float("nan"), float("inf"), "600", None, True, [1]])
def test_a_stall_timeout_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="stall_timeout must be seconds"):
        checked_stall_timeout(wrong)


def test_a_stall_timeout_is_seconds() -> None:
    assert [checked_stall_timeout(each) for each in (0, 3, 0.5)] == [0.0, 3.0, 0.5]


@pytest.mark.parametrize("wrong", [-1, 1.0, "2", None, True])
def test_a_max_active_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="max_active must be an int"):
        checked_max_active(wrong)


@pytest.mark.parametrize("name", Limits.__struct_fields__)
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_limit_that_is_none_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"limit {name} must be"):
        Limits(**{name: wrong})


class Color(enum.Enum):
    RED = 1


@dataclass
class Point:
    data: Any


class Frame(msgspec.Struct):
    data: Any


def test_sizes_are_about_those_of_the_bytes_inside() -> None:
    array = np.zeros(1000)
    looped: list[Any] = []
    looped.append(looped)
    values: list[Any] = [
        array,
        {"a": array},
        [1, array],
        (array,),
        Point(array),
        Frame({"x": [array]}),
    ]
    for value in values:
        assert 8000 <= size_of(value) < 8200
    values = [b"x" * 500, "x" * 500, bytearray(500), memoryview(b"x" * 500)]
    for value in values:
        assert 500 <= size_of(value) < 600
    assert size_of(list(range(1000))) == 16 * 1001
    values = [None, 1, 1.5, True, Color.RED, object(), looped]
    for value in values:
        assert 0 < size_of(value) < 2000


# --- the way from threads to the loop -------------------------------------------------------------


async def test_calls_from_threads_are_made_on_the_loop_in_order_and_wake_it_once() -> None:
    loop = asyncio.get_running_loop()
    rings: list[Any] = []
    ring = loop.call_soon_threadsafe

    def count(call: Any, *arguments: Any, **options: Any) -> Any:
        rings.append(call)
        return ring(call, *arguments, **options)

    loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]
    inbox, made = Inbox("the adapter", threading.Lock()), list[tuple[int, int]]()
    done = asyncio.Event()

    def make(number: int) -> None:
        made.append((number, threading.get_ident()))

    def ask() -> None:
        for number in range(100):
            inbox.append(partial(make, number))
            inbox.wake()
        inbox.append(done.set)
        inbox.wake()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()  # the loop stands still: a single ring has to do
    assert not made
    assert len(rings) == 1
    await done.wait()
    assert made == [(number, threading.get_ident()) for number in range(100)]


async def test_calls_on_the_loop_are_made_at_once_but_not_inside_another() -> None:
    inbox, made = Inbox("the adapter", threading.Lock()), list[str]()

    def outer() -> None:
        inbox.append(lambda: made.append("inner"))
        inbox.wake()
        made.append("outer")

    inbox.append(outer)
    inbox.wake()
    assert made == ["outer", "inner"]


async def test_a_long_line_of_calls_lets_the_loop_turn() -> None:
    loop = asyncio.get_running_loop()
    inbox, turns = Inbox("the adapter", threading.Lock()), list[int]()

    def spend() -> None:
        until = loop.time() + BUDGET
        while loop.time() <= until:
            pass

    made: list[int] = []

    def one(number: int) -> None:
        spend()
        made.append(number)

    for number in range(4):
        inbox.append(partial(one, number))
    inbox.wake()
    while len(made) < 4:
        turns.append(len(made))
        await asyncio.sleep(0)
    assert turns == [1, 2, 3]
    assert made == [0, 1, 2, 3]


async def test_a_call_that_raises_does_not_keep_the_next_one_back() -> None:
    inbox, made = Inbox("the adapter", threading.Lock()), list[int]()

    def fail() -> None:
        raise ZeroDivisionError

    inbox.append(fail)
    inbox.append(lambda: made.append(1))
    with pytest.raises(ZeroDivisionError):
        inbox.wake()
    await asyncio.sleep(0)
    assert made == [1]


def test_a_loop_that_was_closed_under_it_is_told() -> None:
    async def make() -> Inbox:
        return Inbox("the adapter", threading.Lock())

    inbox = asyncio.run(make())
    errors: list[BaseException] = []

    def ask() -> None:
        inbox.append(lambda: None)
        try:
            inbox.wake()
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "the adapter is closed" in str(errors)


async def test_closing_does_what_was_asked_for_and_refuses_the_rest() -> None:
    inbox, made = Inbox("the adapter", threading.Lock()), list[int]()
    inbox.append(lambda: made.append(1))
    inbox.close()
    assert made == [1]
    with pytest.raises(ClosedError, match="the adapter is closed"):
        inbox.check()


# --- who waits for too long -----------------------------------------------------------------------


async def test_the_clock_calls_those_who_waited_long_enough_and_nobody_else() -> None:
    late: list[str] = []
    clock: StallClock[str] = StallClock(0.08, late.append)
    clock.start("first")
    clock.start("stopped")
    await asyncio.sleep(0.04)
    clock.start("second")
    clock.stop("stopped")
    clock.stop("never began")
    await asyncio.sleep(0.06)
    assert late == ["first"]
    assert len(clock) == 1
    await asyncio.sleep(0.06)
    assert late == ["first", "second"]
    assert len(clock) == 0


async def test_beginning_anew_begins_anew() -> None:
    late: list[str] = []
    clock: StallClock[str] = StallClock(0.1, late.append)
    for _ in range(4):
        clock.start("busy")
        await asyncio.sleep(0.04)
    assert not late
    clock.close()
    await asyncio.sleep(0.12)
    assert not late
    clock.close()


async def test_who_is_late_may_wait_again() -> None:
    late: list[str] = []

    def again(who: str) -> None:
        late.append(who)
        if len(late) < 3:
            clock.start(who)

    clock: StallClock[str] = StallClock(0.01, again)
    clock.start("r")
    await asyncio.sleep(0.1)
    assert late == ["r"] * 3


async def test_without_a_limit_nobody_is_late() -> None:
    clock: StallClock[str] = StallClock(0.0, lambda who: pytest.fail(who))
    clock.start("r")
    assert len(clock) == 0
    clock.stop("r")


# --- the mailbox ----------------------------------------------------------------------------------


async def test_an_event_that_comes_up_while_its_request_is_dropped_is_not_told() -> None:
    mailbox, request = Mailbox(), Request("r")
    mailbox.put(request, StreamFinished("r", 0))
    request.dead = True  # between the look and the append of another thread
    assert mailbox.take() is None
    mailbox.put(request, StreamFinished("r", 0))
    assert len(mailbox) == 0
    mailbox.ring()


# --- tasks ----------------------------------------------------------------------------------------


async def test_tasks_end_with_their_owner(caplog: pytest.LogCaptureFixture) -> None:
    tasks, ended = Tasks(), list[str]()

    async def work(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)

    tasks.start(work("short", 0))
    tasks.start(work("long", 60))
    await asyncio.sleep(0.01)
    assert (ended, len(tasks)) == (["short"], 1)
    with caplog.at_level(logging.ERROR):
        await tasks.close()
    assert (ended, len(tasks), caplog.records) == (["short", "long"], 0, [])
