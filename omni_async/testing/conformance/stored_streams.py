"""How streams over a store go and end: their two ends know nothing of each other."""

from __future__ import annotations

import asyncio

import pytest

from ...errors import StreamAborted, TransferCancelled, TransferTimeout, UsageError
from ..chunks import reader, still, writer
from ..faults import CancelAt, Moment
from ..recipes import Recipe, literal, pattern, pattern_array
from ..rig import Rig
from ..sides import LocalSide, Side, attempt
from .base import HERE, SENDER_HERE, Conformance, only_stored, runs
from .cancellation import BOUND, MOMENTS
from .peers import AWAY_RECEIVER, AWAY_SENDER

NBYTES = pytest.mark.parametrize("nbytes", [10, 100_000], ids=["small", "large"])


class StoredStreams(Conformance):
    @runs(*HERE)
    async def test_a_writer_is_not_held_back_by_its_reader(self, rig: Rig) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        recipes = [pattern(3000, number) for number in range(60)]
        await (await writer(tx, "k", window=1)).send_all(recipes)
        story = await (await reader(rx, "k", window=1)).read_all(recipes)
        assert (story.count, story.wrong, story.error) == (60, [], None)
        await rig.quiet()

    @NBYTES
    @runs(*HERE)
    async def test_a_reader_that_leaves_tells_nobody(self, rig: Rig, nbytes: int) -> None:
        """The writer goes on; what was not read is the sender's to clean up."""
        only_stored(rig)
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        for number in range(5):
            await source.send(pattern(nbytes, number))
        assert await sink.read(pattern(nbytes, 0)) is None
        await sink.leave()
        await sink.leave()
        assert isinstance(await attempt(sink.read()), UsageError)
        await source.send(pattern(nbytes, 5))
        await source.finish()
        assert await tx.drain(0.05) >= 4
        assert await tx.cleanup("k") >= 4
        await _works(tx, rx)
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_one_reader_at_a_time(self, rig: Rig) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        assert isinstance(await attempt(writer(tx, "k")), UsageError)
        assert isinstance(await attempt(reader(rx, "k", name="second")), UsageError)
        await source.send_all([literal(1)])
        story = await sink.read_all([literal(1)])
        assert (story.count, story.wrong, story.error) == (1, [], None)

    @NBYTES
    @runs(*HERE)
    async def test_a_key_that_is_used_again_ends_its_reader(self, rig: Rig, nbytes: int) -> None:
        """Not the chunks of one stream behind those of another."""
        only_stored(rig)
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(pattern(nbytes, 0))
        assert await sink.read(pattern(nbytes, 0)) is None
        await source.finish()
        assert (await sink.read_all([])).error is None
        await sink.leave()
        again, sink = await writer(tx, "k"), await reader(rx, "k", name="again")
        await again.send_all([pattern(nbytes, n) for n in range(1, 4)], finish=False)
        assert await sink.read(pattern(nbytes, 1)) is None
        await again.abort("enough")
        third = await writer(tx, "k")
        await third.send_all([pattern(nbytes, n) for n in range(10, 20)])
        error = None
        for number in range(2, 20):
            outcome = await attempt(sink.read(pattern(nbytes, number), timeout=5))
            if isinstance(outcome, Exception):
                error = outcome
                break
            assert outcome is None, outcome
        assert isinstance(error, StreamAborted), error
        await sink.leave()
        await tx.cleanup("k")
        await _works(tx, rx)

    @NBYTES
    @runs(*AWAY_SENDER, own_peer=True)
    async def test_a_killed_writer_is_waited_for(self, rig: Rig, nbytes: int) -> None:
        """Until a limit of its reader: a store cannot tell a slow writer from none."""
        only_stored(rig)
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        for number in range(3):
            await source.send(pattern(nbytes, number))
        assert await sink.read(pattern(nbytes, 0)) is None
        if not self.survives:
            assert await sink.read(pattern(nbytes, 1)) is None
            assert await sink.read(pattern(nbytes, 2)) is None
        rig.peer.kill()
        if self.survives:
            assert await sink.read(pattern(nbytes, 1), timeout=5) is None
            assert await sink.read(pattern(nbytes, 2), timeout=5) is None
        error = await attempt(sink.read(timeout=0.2))
        assert isinstance(error, TransferTimeout), error
        await sink.leave()
        async with rig.opening("sender", "0") as successor:
            await _works(LocalSide(successor), rx)

    @NBYTES
    @runs(*AWAY_RECEIVER, own_peer=True)
    async def test_a_killed_reader_harms_nobody(self, rig: Rig, nbytes: int) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(pattern(nbytes, 0))
        assert await sink.read(pattern(nbytes, 0)) is None
        rig.peer.kill()
        await source.send_all([pattern(nbytes, n) for n in range(1, 5)])
        await tx.cleanup("k")
        async with rig.opening("receiver", "1") as successor:
            await _works(tx, LocalSide(successor))
        await rig.quiet(tx)

    @NBYTES
    @runs(*HERE)
    async def test_clean_up_ends_what_is_at_the_same_end(self, rig: Rig, nbytes: int) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(pattern(nbytes, 0))
        assert await sink.read(pattern(nbytes, 0)) is None
        reading = asyncio.ensure_future(attempt(sink.read()))
        await asyncio.sleep(0.02)
        assert await rx.cleanup("k") == 1
        assert isinstance(await asyncio.wait_for(reading, 5), TransferCancelled)
        assert await rx.cleanup("k") == 0
        await source.send(pattern(nbytes, 1))  # it has heard of nothing
        assert await tx.cleanup("k") >= 1
        assert isinstance(await attempt(source.send(literal(1))), TransferCancelled)
        assert await tx.cleanup("k") == 0
        await sink.leave()
        await _works(tx, rx)
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_a_reader_does_not_hear_of_a_clean_up(self, rig: Rig) -> None:
        only_stored(rig)
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(literal(0))
        assert await sink.read(literal(0)) is None
        await tx.cleanup("k")
        assert isinstance(await attempt(sink.read(timeout=0.1)), TransferTimeout)
        await sink.leave()
        await rig.quiet()

    @MOMENTS
    @NBYTES
    @runs(*SENDER_HERE)
    async def test_a_cancelled_send(self, rig: Rig, moment: Moment, nbytes: int) -> None:
        """It was sent or not, as the writer says; never twice, never in another one's place."""
        only_stored(rig)
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        stream = await tx.transport.edge("0", "1").writer("k").__aenter__()
        sink = await reader(rx, "k")
        sent: list[Recipe] = []
        for seed in range(BOUND):
            before = stream.sent
            attempted: CancelAt = CancelAt(seed, moment)
            await attempted.run(stream.send(pattern_array(nbytes, seed)))
            assert attempted.error is None
            if attempted.cancelled:
                await stream.end_segment()  # from here on it is known
                if stream.sent > before:
                    sent.append(pattern(nbytes, seed))
            else:
                sent.append(pattern(nbytes, seed))
            assert stream.sent == len(sent)
            if not attempted.reached:
                break
        await stream.finish()
        story = await sink.read_all(sent)
        assert (story.count, story.wrong, story.error) == (len(sent), [], None)
        await sink.leave()
        await still(tx, rx)
        await rig.quiet()


async def _works(tx: Side, rx: Side) -> None:
    """The next stream is none the wiser."""
    sink, source = await reader(rx, "next"), await writer(tx, "next")
    await source.send_all([pattern(5_000, 1), pattern(50_000, 2)])
    story = await sink.read_all([pattern(5_000, 1), pattern(50_000, 2)])
    assert (story.count, story.wrong, story.error) == (2, [], None)
    await sink.leave()
