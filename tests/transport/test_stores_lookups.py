"""LookUps: everybody is asked for within a round, nobody is asked for nothing, and nothing wakes who was not told."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from omni_async.errors import EngineFault, ServerUnreachable
from omni_async.transport.stored.lookups import NEWEST, LookUps

BATCH = 1000


class Kept:
    """What a store answers, question by question."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.questions: list[list[str]] = []
        self.asked = asyncio.Event()
        self.fails: EngineFault | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def contains(self, names: Sequence[str]) -> list[bool]:
        self.questions.append(list(names))
        self.asked.set()
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return [name in self.there for name in names]

    async def questions_more(self, count: int) -> None:
        """Until so many more were asked."""
        wanted = len(self.questions) + count
        while len(self.questions) < wanted:
            self.asked.clear()
            await asyncio.wait_for(self.asked.wait(), 5)


@pytest.fixture
async def kept() -> Kept:
    return Kept()


def looking(kept: Kept) -> LookUps:
    return LookUps(asyncio.get_running_loop(), kept.contains, BATCH)


async def ended(lookups: LookUps) -> None:
    lookups.close()
    while lookups._task is not None:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


async def test_of_ten_thousand_everybody_is_asked_for_within_a_round(kept: Kept) -> None:
    lookups = looking(kept)
    waiters = [lookups.wait(f"k{number}") for number in range(10_000)]
    turns = -(-10_000 // (BATCH - BATCH // NEWEST)) + 1
    await kept.questions_more(turns)
    assert max(map(len, kept.questions)) <= BATCH
    asked = Counter(name for names in kept.questions[:turns] for name in names)
    assert len(asked) == 10_000
    await kept.questions_more(2 * turns)
    asked = Counter(name for names in kept.questions[turns:] for name in names)
    assert len(asked) == 10_000  # and again, from wherever a round begins
    for waiter in waiters:
        waiter.cancel()
    await asyncio.sleep(0)
    assert len(lookups) == 0
    await ended(lookups)


async def test_a_round_in_which_nothing_happened_is_the_same_again(kept: Kept) -> None:
    lookups = looking(kept)
    waiters = [lookups.wait(f"k{number}") for number in range(10_000)]
    lookups._fresh -= 100.0
    lookups.close()  # asked by hand
    turns = -(-10_000 // lookups._size)
    first, second = ([lookups._next() for _ in range(turns)] for _ in range(2))
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert list(itertools.chain(*first)) == list(lookups._waiting)
    waiters[-1].cancel()
    await asyncio.sleep(0)
    third = [lookups._next() for _ in range(turns)]
    assert list(itertools.chain(*third)) == list(lookups._waiting)
    for waiter in waiters:
        waiter.cancel()
    await ended(lookups)


@pytest.mark.parametrize("seed", range(4))
async def test_whoever_comes_and_goes_is_asked_for_within_two_rounds(kept: Kept, seed: int) -> None:
    """And nobody who has left is asked for, nobody twice in one question."""
    chance = random.Random(seed)
    lookups = LookUps(asyncio.get_running_loop(), kept.contains, 40)
    lookups.close()
    waiting: dict[str, asyncio.Future[None]] = {}
    for _ in range(600):
        target = chance.choice((0, 30, 60, 200, 400))
        while len(waiting) < target and chance.random() < 0.98:
            name = f"k{chance.randrange(500)}"
            if name not in waiting:
                waiting[name] = lookups.wait(name)
        for name in list(waiting):
            if len(waiting) > target and chance.random() < 0.3:
                waiting.pop(name).cancel()
        await asyncio.sleep(0)
        lookups._fresh -= chance.choice((0.0, 100.0))
        if not waiting:
            continue
        for _ in range(chance.randrange(1, 30)):
            names = lookups._next()
            assert 0 < len(names) <= 40
            assert len(set(names)) == len(names)
            assert set(names) <= set(waiting)
        bound = 2 * (-(-400 // lookups._size) + 1)
        asked = {name for _ in range(bound) for name in lookups._next()}
        assert asked == set(waiting)
    for waiter in waiting.values():
        waiter.cancel()
    await asyncio.sleep(0)
    assert len(lookups) == 0


async def test_one_who_comes_late_is_in_the_next_question(kept: Kept) -> None:
    lookups = looking(kept)
    waiters = [lookups.wait(f"k{number}") for number in range(5000)]
    await kept.questions_more(1)
    waiters.append(lookups.wait("newest"))
    await kept.questions_more(2)
    assert "newest" in kept.questions[-1] or "newest" in kept.questions[-2]
    for waiter in waiters:
        waiter.cancel()
    await ended(lookups)


async def test_those_who_come_one_after_another_do_not_have_all_others_asked_for(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.transport.stored.lookups.NAMES", BATCH / 3)  # all in 3 s
    lookups = looking(kept)
    waiters = [lookups.wait(f"k{number}") for number in range(BATCH)]
    await kept.questions_more(1)
    for number in range(20):
        waiters.append(lookups.wait(f"late-{number}"))
        await kept.questions_more(1)
        if f"late-{number}" not in kept.questions[-1]:  # it was on its way
            await kept.questions_more(1)
        assert f"late-{number}" in kept.questions[-1]
    assert sum(map(len, kept.questions)) < 5 * BATCH
    for waiter in waiters:
        waiter.cancel()
    await ended(lookups)


async def test_the_one_that_is_there_is_told_and_no_other(kept: Kept) -> None:
    lookups = looking(kept)
    first, second, other = (lookups.wait(name) for name in ("a", "a", "b"))
    assert len(lookups) == 3
    kept.there.add("a")
    await asyncio.wait_for(asyncio.gather(first, second), 5)
    assert not other.done()
    assert len(lookups) == 1
    kept.there.add("b")
    await asyncio.wait_for(other, 5)
    await ended(lookups)


async def test_no_question_while_nobody_waits(kept: Kept) -> None:
    lookups = looking(kept)
    await asyncio.sleep(0.02)
    assert kept.questions == []
    kept.there.add("a")
    await asyncio.wait_for(lookups.wait("a"), 5)
    given_up = lookups.wait("never")
    await kept.questions_more(1)
    given_up.cancel()
    while lookups._task is not None:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    count = lookups.questions
    await asyncio.sleep(0.05)
    assert lookups.questions == count == len(kept.questions)
    kept.there.add("b")
    await asyncio.wait_for(lookups.wait("b"), 5)  # and it begins again
    await ended(lookups)


async def test_who_left_is_asked_for_no_more(kept: Kept) -> None:
    lookups = looking(kept)
    staying, leaving = lookups.wait("stays"), lookups.wait("leaves")
    await kept.questions_more(1)
    leaving.cancel()
    await kept.questions_more(2)
    assert kept.questions[-1] == ["stays"]
    staying.cancel()
    await ended(lookups)


async def test_a_store_that_does_not_answer_is_asked_again(kept: Kept) -> None:
    lookups = looking(kept)
    kept.fails = ServerUnreachable("nobody is there", status="down")
    waiting = lookups.wait("a")
    await kept.questions_more(2)
    assert lookups.trouble is kept.fails
    assert not waiting.done()
    kept.fails = None
    kept.there.add("a")
    await asyncio.wait_for(waiting, 5)
    assert lookups.trouble is None
    await ended(lookups)


async def test_a_store_in_trouble_is_left_alone_the_longer(kept: Kept) -> None:
    lookups = looking(kept)
    kept.fails = EngineFault("broken", status=-1)
    waiting = lookups.wait("a")
    await asyncio.sleep(0.5)
    assert 3 <= len(kept.questions) < 30
    waiting.cancel()
    await ended(lookups)


async def test_the_longer_nothing_happens_the_more_seldom_it_is_asked(kept: Kept) -> None:
    lookups = looking(kept)
    waiting = lookups.wait("never")
    lookups._event -= 100.0
    before = len(kept.questions)
    await asyncio.sleep(0.3)
    assert 5 <= len(kept.questions) - before <= 20  # 20 ms apart
    kept.there.add("now")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.wait_for(lookups.wait("now"), 5)  # one who comes is asked for soon
    assert loop.time() - began < 0.1
    waiting.cancel()
    await ended(lookups)


async def test_closing_leaves_no_task_and_asks_no_more(kept: Kept) -> None:
    lookups = looking(kept)
    waiting = lookups.wait("a")
    await kept.questions_more(1)
    kept.gate.clear()
    await kept.questions_more(1)
    lookups.close()
    lookups.close()
    kept.gate.set()
    while lookups._task is not None:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    count = len(kept.questions)
    await asyncio.sleep(0.03)
    assert len(kept.questions) == count
    waiting.cancel()


@pytest.mark.parametrize("count", [1, BATCH, BATCH + 1, 2 * BATCH + 7])
async def test_no_question_names_one_twice_or_is_empty(kept: Kept, count: int) -> None:
    lookups = looking(kept)
    waiters = [lookups.wait(f"k{number}") for number in range(count)]
    await kept.questions_more(8)
    for names in kept.questions:
        assert 0 < len(names) <= BATCH
        assert len(set(names)) == len(names)
    for waiter in waiters:
        waiter.cancel()
    await ended(lookups)


async def test_ten_thousand_that_come_at_once_are_all_told(kept: Kept) -> None:
    lookups = looking(kept)
    waiters = {f"k{number}": lookups.wait(f"k{number}") for number in range(10_000)}
    await kept.questions_more(1)
    kept.there.update(waiters)
    await asyncio.wait_for(asyncio.gather(*waiters.values()), 10)
    assert len(lookups) == 0
    await ended(lookups)
