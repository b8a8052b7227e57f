"""The completion registry: every answer is matched once, late and doubled ones are counted."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from omni_async.errors import ClosedError, KeyNotFound
from omni_async.rendezvous.completions import CompletionRegistry


def counts(registry: CompletionRegistry) -> tuple[int, int, int]:
    return registry.late, registry.doubled, registry.unknown


async def test_resolve_and_fail() -> None:
    registry = CompletionRegistry()
    good, bad = registry.create(1), registry.create(2)
    assert len(registry) == 2
    assert registry.resolve(1, "word")
    assert registry.fail(2, KeyNotFound("gone"))
    assert len(registry) == 0
    assert await good == "word"
    with pytest.raises(KeyNotFound, match="gone"):
        await bad
    assert counts(registry) == (0, 0, 0)


async def test_doubled_late_unknown() -> None:
    registry = CompletionRegistry(asyncio.get_running_loop())
    registry.create(1)
    registry.resolve(1, None)
    assert not registry.resolve(1, None)
    assert not registry.fail(1, KeyError())
    assert counts(registry) == (0, 2, 0)
    assert not registry.resolve(99, None)
    assert counts(registry) == (0, 2, 1)
    registry.create(2).cancel()
    assert len(registry) == 0
    assert not registry.resolve(2, None)
    assert not registry.resolve(2, None)
    assert counts(registry) == (2, 2, 1)
    third = registry.create(3)
    registry.discard(3)
    assert third.cancelled()
    assert not registry.resolve(3, None)
    assert counts(registry) == (3, 2, 1)
    registry.discard(3)
    registry.discard(77)


async def test_an_expired_waiter_is_late() -> None:
    registry = CompletionRegistry()
    future = registry.create(1)
    future.set_exception(TimeoutError())
    assert not registry.resolve(1, None)
    assert counts(registry) == (1, 0, 0)
    with pytest.raises(TimeoutError):
        await future


async def test_the_next_answer_to_the_same_operation() -> None:
    registry = CompletionRegistry()
    for word in ("offer", "done"):
        future = registry.create(1)
        assert registry.resolve(1, word)
        assert await future == word
    assert counts(registry) == (0, 0, 0)


async def test_two_waiters_for_one_operation_are_a_mistake() -> None:
    registry = CompletionRegistry()
    first = registry.create(1)
    with pytest.raises(RuntimeError, match="waited for already"):
        registry.create(1)
    first.cancel()
    registry.create(1)
    assert registry.resolve(1, None)


async def test_close_ends_all_and_whatever_comes_after() -> None:
    registry = CompletionRegistry()
    futures = [registry.create(op) for op in range(3)]
    futures[0].cancel()
    registry.close(ClosedError("the transport is closed"))
    errors = set()
    for future in futures[1:]:
        with pytest.raises(ClosedError, match="is closed") as caught:
            await future
        errors.add(id(caught.value))
    assert len(errors) == 2  # each waiter has its own, with its own traceback
    with pytest.raises(ClosedError):
        registry.create(4)
    assert not registry.resolve(1, None)
    assert counts(registry) == (1, 0, 0)
    assert len(registry) == 0


async def test_errors_nobody_fetches_are_no_noise() -> None:
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    registry = CompletionRegistry()
    registry.create(1)
    registry.create(2)
    registry.fail(1, KeyNotFound("gone"))
    registry.close(ClosedError("closed"))
    gc.collect()
    await asyncio.sleep(0)
    assert seen == []


async def test_nothing_is_kept_of_who_left_without_a_word() -> None:
    registry = CompletionRegistry()
    for op in range(20_000):
        registry.create(op).cancel()
    assert len(registry._waiting) <= 1024
    assert len(registry._past) <= 4096
    waiting = [registry.create(op) for op in range(20_000, 23_000)]
    for op in range(23_000, 30_000):
        registry.create(op).cancel()
    assert len(registry._waiting) <= 6000
    assert len(registry) == 3000
    assert all(registry.resolve(op, op) for op in range(20_000, 23_000))
    assert [future.result() for future in waiting] == list(range(20_000, 23_000))


async def test_long_forgotten_operations_are_unknown() -> None:
    registry = CompletionRegistry()
    for op in range(10_000):
        registry.create(op)
        registry.resolve(op, None)
    registry.resolve(0, None)
    registry.resolve(9_999, None)
    assert counts(registry) == (0, 1, 1)


@pytest.mark.parametrize("seed", range(20))
async def test_any_order_of_events(seed: int) -> None:
    """Against a plain model: never an InvalidStateError, every answer counted once."""
    chance = random.Random(seed)
    registry = CompletionRegistry()
    state: dict[int, str] = {}
    futures: dict[int, asyncio.Future[object]] = {}
    expected = {"late": 0, "doubled": 0, "unknown": 0}
    for _ in range(2000):
        op = chance.randrange(40)
        match chance.choice(["create", "resolve", "fail", "discard", "cancel"]):
            case "create" if state.get(op) != "waiting":
                futures[op] = registry.create(op)
                state[op] = "waiting"
            case "resolve" | "fail" as how:
                done = (
                    registry.resolve(op, op) if how == "resolve" else registry.fail(op, OSError())
                )
                assert done == (state.get(op) == "waiting")
                if done:
                    state[op] = "answered"
                else:
                    name = {"answered": "doubled", "gone": "late", None: "unknown"}
                    expected[name[state.get(op)]] += 1
            case "discard" if op in state:
                registry.discard(op)
                if state[op] == "waiting":
                    assert futures[op].cancelled()
                    state[op] = "gone"
            case "cancel" if state.get(op) == "waiting":
                futures[op].cancel()
                state[op] = "gone"
            case _:
                pass
        assert len(registry) == sum(1 for value in state.values() if value == "waiting")
    assert counts(registry) == (expected["late"], expected["doubled"], expected["unknown"])
