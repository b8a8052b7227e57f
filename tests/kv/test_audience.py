"""For whom a request is: instances of any number of ranks, in any order, each rank once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import omni_async
from omni_async.errors import ProtocolError
from omni_async.kv import KVConsumer, KVMemory, KVProducer
from omni_async.kv.audience import Audience, Seat
from tests.kv.nodes import layout

ONE = Seat()
TWO = [Seat(2, rank, (0, 1)) for rank in (0, 1)]


def test_instances_of_one_and_of_two_ranks_in_either_order() -> None:
    for order in ([ONE, *TWO], [*TWO, ONE], [TWO[1], ONE, TWO[0]]):
        audience = Audience(2)
        for number, seat in enumerate(order):
            assert not audience.complete
            assert audience.objection(str(number), seat) is None
            audience.add(str(number), seat)
        assert audience.complete
        assert audience.expected == 3
        assert "one more" in str(audience.objection("another", ONE))
        assert "one more" in str(audience.objection("another", TWO[0]))


def test_who_asks_twice_is_not_two() -> None:
    audience = Audience(2)
    audience.add("d1", ONE)
    assert "already" in str(audience.objection("d1", ONE))
    assert not audience.complete


def test_a_rank_does_not_stand_for_its_neighbour() -> None:
    audience = Audience(1)
    audience.add("rank 0", TWO[0])
    assert "one more" in str(audience.objection("rank 0 of another", TWO[0]))
    assert audience.objection("rank 1", TWO[1]) is None
    assert (audience.complete, audience.expected) == (False, 2)
    audience.add("rank 1", TWO[1])
    assert audience.complete


def test_who_gets_nothing_from_here_belongs_elsewhere() -> None:
    assert "gets nothing" in str(Audience(1).objection("d", Seat(2, 1, (0,))))
    assert "gets nothing" in str(Audience(1).objection("d", Seat(2, 1, ())))


def test_nobody_is_expected_before_somebody_has_come() -> None:
    audience = Audience(3)
    assert (audience.complete, audience.expected) == (False, 0)
    audience.add("a", TWO[0])
    assert audience.expected == 6


@given(st.data(), st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4))
def test_complete_with_the_last_and_not_before(data: st.DataObject, sizes: list[int]) -> None:
    everybody = [
        (f"{number}/{rank}", Seat(size, rank, tuple(range(size))))
        for number, size in enumerate(sizes)
        for rank in range(size)
    ]
    audience = Audience(len(sizes))
    for who, seat in data.draw(st.permutations(everybody)):
        assert not audience.complete
        assert audience.objection(who, seat) is None
        audience.add(who, seat)
    assert audience.complete
    assert audience.expected == len(everybody)
    for size in {1, 2, 4}:
        assert audience.objection("another", Seat(size, 0, tuple(range(size)))) is not None


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
async def test_blocks_are_free_when_both_instances_have_all(
    namespace: str, order: list[int]
) -> None:
    layouts = [layout(), *(layout(tp_size=2, tp_rank=rank) for rank in (0, 1))]
    async with contextlib.AsyncExitStack() as stack:
        tx = await stack.enter_async_context(
            omni_async.open_transport("memory", role="sender", stage="p", namespace=namespace)
        )
        producer = await stack.enter_async_context(KVProducer(tx, layouts[0], KVMemory(layouts[0])))
        consumers = []
        for of in layouts:
            rx = await stack.enter_async_context(
                omni_async.open_transport(
                    "memory",
                    role="receiver",
                    stage=f"d{of.tp_size}",
                    rank=of.tp_rank,
                    namespace=namespace,
                )
            )
            consumer = KVConsumer(rx, of, KVMemory(of), from_stage="p", source_tp=1)
            consumers.append(await stack.enter_async_context(consumer))
        session = await producer.offer("r", [0], consumers=2)
        delivered = asyncio.ensure_future(session.delivered())
        for number in order:
            await asyncio.sleep(0.02)
            assert not delivered.done()
            await (await consumers[number].receive("r", [3], mode="read")).all()
            if number == order[0]:  # it has it, and is not two
                again = await consumers[number].receive("r", [2], mode="read")
                with pytest.raises(ProtocolError, match="asked for it already"):
                    await again.all()
        await asyncio.wait_for(delivered, 5)
