"""Where a consumer's producers are said to be, and what cannot be such a place."""

from __future__ import annotations

from typing import Any

import pytest

import omni_async
from omni_async.model import Endpoint
from tests.ends import Ends
from tests.kv.pairs import SOURCE, TARGET, carry, joined, nothing_left, pair

KIND = "a source is a rank's number, an Endpoint, or a mapping with source_host"
NONE: list[Any] = [
    {},
    {"a": []},
    {"source_host": "x"},
    {"source_host": 5, "source_port": "x"},
    {"source_host": "127.0.0.1", "source_port": 70000},
    {"source_host": [], "source_port": 5},
    5,
    -1,
    True,
    1.0,
    "p",
    Endpoint("n", "p", "0", 0),  # type: ignore[arg-type]
    Endpoint("n", [], 0, 0),  # type: ignore[arg-type]
    object(),
]


async def test_what_is_no_source_is_refused_at_once(where: Ends) -> None:
    node, target = pair({}, {})
    async with joined(where, node, target) as (producer, consumer):
        kept = dict(consumer._sources._kept)
        for source in [*NONE, *([one] for one in NONE)]:
            with pytest.raises(omni_async.UsageError, match=KIND):
                await consumer.receive("r", TARGET, source=source)
            with pytest.raises(omni_async.UsageError, match=KIND):
                await consumer.receive_all({"one": ("r", TARGET)}, source=source)
            with pytest.raises(omni_async.UsageError, match=KIND):
                consumer.decline("r", source=source)
        assert consumer._sources._kept == kept
        nothing_left(producer, consumer)


async def test_only_a_source_can_be_left_and_one_at_a_time(where: Ends) -> None:
    node, target = pair({}, {})
    async with joined(where, node, target) as (producer, consumer):
        node.end = producer
        await carry(node, target, consumer, "r")
        for wrong in [*NONE, [0, 1], [{}], [0], None]:
            if wrong in (5, -1) and not isinstance(wrong, bool):
                assert not consumer.leave(wrong)  # never asked
                continue
            with pytest.raises(omni_async.UsageError, match=KIND):
                consumer.leave(wrong)
        assert consumer.leave(0)
        assert not consumer.leave(0)
        await carry(node, target, consumer, "again")


async def test_a_rank_among_those_that_share_the_heads_is_one(where: Ends) -> None:
    node, target = pair({}, {})
    async with joined(where, node, target) as (producer, consumer):
        node.end = producer
        for source in (0, [0], Endpoint(where.namespace, "0", 0, 0)):
            progress = await consumer.receive("r", TARGET, source=source, mode="read")
            await producer.offer("r", SOURCE)
            await progress.all(timeout=5)


async def test_companions_are_requests_by_role(where: Ends) -> None:
    node, target = pair({}, {})
    async with joined(where, node, target) as (producer, consumer):
        good = ("r", TARGET)
        wrong: list[Any] = [
            None,
            [good],
            good,
            {"a": good, "b": ("q",)},
            {"a": good, "b": "qq"},
            {"a": good, "b": None},
            {"a": good, "b": ("q", [1], 2)},
        ]
        for requests in wrong:
            with pytest.raises(omni_async.UsageError, match=r"requests are a mapping of role to"):
                await consumer.receive_all(requests)
        nothing_left(producer, consumer)
        assert await consumer.receive_all({}) == {}
