"""Streams: every chunk once, in order, as what it was; credit; segments; keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ...errors import StreamClosed, StreamEmpty, TransferTimeout, UsageError
from ..chunks import End, Story, reader, still, writer
from ..recipes import Recipe, literal, pattern, tree
from ..recipes import sample as one
from ..rig import Rig
from ..samples import FAMILIES, NEEDS
from ..sides import Side, attempt
from .base import HERE, RECEIVER_HERE, SENDER_HERE, Conformance, only, runs

SIZES = [0, 6_400, 256 << 10, 5 << 20]
MIXED = [0, 300_000, 100, 6_400, 20_000, 1, 9_000, 70_000]


class Streams(Conformance):
    @pytest.mark.parametrize("nbytes", SIZES)
    @runs(*HERE)
    async def test_chunks_arrive_once_in_order(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair()
        count = 100 if nbytes < 10_000 else 12
        await _through(tx, rx, "k", [pattern(nbytes, number) for number in range(count)])
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_small_and_large_chunks_keep_their_order(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        recipes = [tree(MIXED[n % len(MIXED)], n) for n in range(60)]
        await _through(tx, rx, "k", recipes)
        await still(tx, rx)
        await rig.quiet()

    @pytest.mark.parametrize("name", list(FAMILIES))
    @runs(*HERE)
    async def test_chunks_of_every_kind(self, rig: Rig, name: str) -> None:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name])
        tx, rx = await rig.pair()
        await _through(tx, rx, "k", [one(sample, name) for sample in FAMILIES[name]()])

    @pytest.mark.parametrize("nbytes", [10, 100_000])
    @runs(*HERE)
    async def test_the_writer_comes_and_goes_first(self, rig: Rig, nbytes: int) -> None:
        tx = await rig.sender()
        recipes = [pattern(nbytes, number) for number in range(8)]
        await (await writer(tx, "k", window=8)).send_all(recipes)
        rx = await rig.receiver()
        _right(await (await reader(rx, "k")).read_all(recipes), len(recipes))
        await rig.quiet()

    @runs(*HERE)
    async def test_the_reader_comes_first(self, rig: Rig) -> None:
        rx = await rig.receiver()
        recipes = [pattern(MIXED[n % len(MIXED)], n) for n in range(10)]
        reading = asyncio.ensure_future((await reader(rx, "k")).read_all(recipes))
        await asyncio.sleep(0.05)
        tx = await rig.sender()
        await asyncio.sleep(0.05)
        assert not reading.done()
        await (await writer(tx, "k")).send_all(recipes)
        _right(await reading, len(recipes))

    @runs(*HERE)
    async def test_a_stream_without_chunks(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await _through(tx, rx, "k", [])

    @runs(*HERE)
    async def test_segments(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        end = await writer(tx, "k")
        recipes = [pattern(MIXED[n % len(MIXED)], n) for n in range(9)]
        reading = asyncio.ensure_future((await reader(rx, "k")).read_all(recipes, segments=True))
        chunks = iter(recipes)
        for count in (2, 0, 4, 1):
            for _ in range(count):
                await end.send(next(chunks))
            await end.end_segment()
        await end.send_all(chunks)
        story = await reading
        _right(story, 9)
        assert story.segments == [2, 0, 4, 1, 2]

    @runs(*HERE)
    async def test_segments_are_no_obstacle_for_who_reads_on(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        end = await writer(tx, "k")
        for number in range(3):
            await end.send(literal(number))
            await end.end_segment()
        await end.finish()
        _right(await (await reader(rx, "k")).read_all([literal(n) for n in range(3)]), 3)

    @pytest.mark.parametrize("nbytes", [10, 100_000])
    @runs(*HERE)
    async def test_reading_without_waiting(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        assert isinstance(await attempt(sink.read_nowait()), StreamEmpty)
        for number in range(3):
            await source.send(pattern(nbytes, number))
        await source.finish()
        for number in range(3):
            assert await _poll(sink, pattern(nbytes, number)) is None
        for _ in range(2):
            assert isinstance(await _poll(sink), StreamClosed)
        await sink.leave()
        await still(tx, rx)

    @runs(*HERE)
    async def test_reading_under_a_limit(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(literal(0))
        assert await sink.read(literal(0)) is None
        for timeout in (0.1, 0):
            error = await attempt(sink.read(timeout=timeout))
            assert isinstance(error, TransferTimeout), error
            assert "'k'" in str(error)
            assert "chunk 1 " in str(error)
            assert (error.key, error.edge, error.timeout) == ("k", ("0", "1"), timeout)
        await source.send(literal(1))
        assert await sink.read(literal(1)) is None
        for wrong in (-1, float("nan"), "1"):
            assert isinstance(await attempt(sink.read(timeout=wrong)), UsageError)  # type: ignore[arg-type]
        await sink.leave()

    @pytest.mark.parametrize("nbytes", [10, 100_000])
    @runs(*HERE)
    async def test_a_window_of_one(self, rig: Rig, nbytes: int) -> None:
        """One chunk that was not taken is all there ever is, before the reader comes and after."""
        only(rig, "credit", "without credit the store's room alone holds a writer back")
        tx, rx = await rig.pair()
        source = await writer(tx, "k", window=1)
        recipes = [pattern(nbytes, number) for number in range(6)]
        sending = asyncio.ensure_future(source.send_all(recipes))
        await _until_sent(source, 1)
        sink = await reader(rx, "k", window=1)
        for number, recipe in enumerate(recipes):
            await _until_sent(source, number + 1)
            assert await sink.read(recipe) is None
        await sending
        assert isinstance(await attempt(sink.read()), StreamClosed)

    @pytest.mark.parametrize(("ours", "theirs"), [(1, 5), (5, 1), (3, 64), (64, 3)])
    @runs(*HERE)
    async def test_windows_that_differ(self, rig: Rig, ours: int, theirs: int) -> None:
        only(rig, "credit", "without credit the store's room alone holds a writer back")
        tx, rx = await rig.pair()
        source = await writer(tx, "k", window=ours)
        recipes = [pattern(MIXED[n % len(MIXED)], n) for n in range(80)]
        sending = asyncio.ensure_future(source.send_all(recipes))
        await _until_sent(source, ours)
        sink = await reader(rx, "k", window=theirs)
        await _until_sent(source, max(ours, theirs))
        _right(await sink.read_all(recipes), 80)
        await sending
        await sink.leave()
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_a_writer_waits_for_a_reader_that_is_behind(self, rig: Rig) -> None:
        only(rig, "credit", "without credit the store's room alone holds a writer back")
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k", window=4), await reader(rx, "k", window=4)
        recipes = [pattern(50_000, number) for number in range(40)]
        sending = asyncio.ensure_future(source.send_all(recipes))
        await _until_sent(source, 4)
        _right(await sink.read_all(recipes, pause=0.002), 40)
        await sending

    @runs(*HERE)
    async def test_many_at_once(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        streams = {
            f"k{number}": [
                pattern(MIXED[(number + n) % len(MIXED)] // 8, number * 100 + n) for n in range(10)
            ]
            for number in range(200)
        }
        stories = await asyncio.gather(
            *(_reading(rx, key, recipes) for key, recipes in streams.items()),
            *(_writing(tx, key, recipes) for key, recipes in reversed(streams.items())),
        )
        for story in stories[:200]:
            assert story is not None
            _right(story, 10)
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_a_key_is_used_again(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for turn in range(10):
            recipes = [pattern(MIXED[n], turn * 10 + n) for n in range(turn % 5)]
            await _through(tx, rx, "k", recipes)
        await still(tx, rx)

    @pytest.mark.parametrize("nbytes", [10, 100_000])
    @runs(*HERE)
    async def test_a_key_is_used_again_before_all_was_read(self, rig: Rig, nbytes: int) -> None:
        only(
            rig,
            "credit",
            "over a store a key has one place, and a transport one stream of it at a time",
        )
        tx, rx = await rig.pair()
        first, second = (
            [pattern(nbytes, n) for n in range(5)],
            [pattern(nbytes, n + 100) for n in range(3)],
        )
        sink = await reader(rx, "k", window=2, name="first")
        source = await writer(tx, "k", window=2)
        sending = asyncio.ensure_future(source.send_all(first))
        for number in range(3):
            assert await sink.read(first[number]) is None
        await sending
        await (await writer(tx, "k")).send_all(second)
        other = await reader(rx, "k", name="second")
        _right(await other.read_all(second), 3)
        assert [await sink.read(recipe) for recipe in first[3:]] == [None, None]
        assert isinstance(await attempt(sink.read()), StreamClosed)
        for end in (sink, other):
            await end.leave()
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_a_stream_that_nobody_read_is_replaced(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for turn in range(3):
            await (await writer(tx, "k")).send_all([pattern(100_000, turn)])
        _right(await (await reader(rx, "k")).read_all([pattern(100_000, 2)]), 1)
        await rig.quiet()

    @runs(*HERE)
    async def test_one_writer_and_one_reader(self, rig: Rig) -> None:
        only(
            rig,
            "credit",
            "over a store a key has one place, and a transport one stream of it at a time",
        )
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        assert isinstance(await attempt(writer(tx, "k")), UsageError)
        await source.send(literal(1))
        assert await sink.read(literal(1)) is None
        second = await reader(rx, "k", name="second")
        error = await attempt(second.read(timeout=5))
        assert isinstance(error, StreamClosed), error
        assert "reader already" in str(error)
        await source.send(literal(2))
        assert await sink.read(literal(2)) is None

    @runs(*SENDER_HERE)
    async def test_one_of_the_readers_that_came_first(self, rig: Rig) -> None:
        only(
            rig,
            "credit",
            "over a store a key has one place, and a transport one stream of it at a time",
        )
        tx, rx = await rig.pair()
        sinks = [await reader(rx, "k", name=name) for name in ("one", "other")]
        stories = [asyncio.ensure_future(sink.read_all([literal(1)])) for sink in sinks]
        await asyncio.sleep(0.1)
        await (await writer(tx, "k")).send_all([literal(1)])
        found = [(s.count, s.error.kind if s.error else "") for s in await asyncio.gather(*stories)]
        assert sorted(found) == [(0, "StreamClosed"), (1, "")]

    @runs(*HERE)
    async def test_where_the_sender_is_told_by_metadata(self, rig: Rig) -> None:
        tx, rx = await rig.sender(rank=1), await rig.receiver()
        receipt = await tx.put("other", literal(0))
        if receipt.metadata is None:
            pytest.skip("stores have one place for a key")
        sink = await reader(rx, "k", metadata=receipt.metadata)
        await (await writer(tx, "k")).send_all([literal(1)])
        _right(await sink.read_all([literal(1)]), 1)
        await tx.cleanup("other")

    @runs(*HERE)
    async def test_many_edges_have_streams_of_one_key(self, rig: Rig) -> None:
        tx = await rig.sender()
        stages = ("1", "2", "3")
        sinks = {
            stage: await reader(await rig.receiver(stage), "k", edge=("0", stage))
            for stage in stages
        }
        for stage in stages:
            await (await writer(tx, "k", edge=("0", stage))).send_all([literal(stage)])
        for stage, sink in sinks.items():
            _right(await sink.read_all([literal(stage)]), 1)

    @runs(*RECEIVER_HERE)
    async def test_puts_and_streams_do_not_meet(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("k", pattern(100_000, 7))
        await _through(tx, rx, "k", [pattern(100_000, n) for n in range(3)])
        assert (await rx.get("k", pattern(100_000, 7))).wrong is None
        await rig.quiet()


async def _through(tx: Side, rx: Side, key: str, recipes: list[Recipe]) -> None:
    """A whole stream, written and read at the same time."""
    story, _ = await asyncio.gather(_reading(rx, key, recipes), _writing(tx, key, recipes))
    _right(story, len(recipes))


async def _reading(rx: Side, key: str, recipes: list[Recipe]) -> Story:
    sink = await reader(rx, key)
    story = await sink.read_all(recipes)
    await sink.leave()
    return story


async def _writing(tx: Side, key: str, recipes: list[Recipe]) -> None:
    await (await writer(tx, key)).send_all(recipes)


def _right(story: Story, count: int) -> None:
    assert not story.wrong, story.wrong[:3]
    assert story.error is None, story.error
    assert story.count == count


async def _poll(sink: End, want: Recipe | None = None) -> Any:
    """Read without waiting until there is something."""
    for _ in range(400):
        found = await attempt(sink.read_nowait(want))
        if not isinstance(found, StreamEmpty):
            return found
        await asyncio.sleep(0.005)
    return StreamEmpty("nothing came within 2 s")


async def _until_sent(source: End, count: int) -> None:
    """Wait until that many chunks were sent, and see that there are no more of them."""
    for _ in range(400):
        if await source.sent() >= count:
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.01)
    assert await source.sent() == count
