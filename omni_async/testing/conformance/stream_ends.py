"""How streams end: by their writers, their readers, their processes, and whoever cleans up."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from typing import Any

import pytest

from ...codec import register_type
from ...errors import (
    ClosedError,
    DecodeError,
    EncodeError,
    KeyNotFound,
    OmniAsyncError,
    PayloadTooLarge,
    PeerLost,
    StreamAborted,
    StreamClosed,
    TransferCancelled,
    UsageError,
)
from ..chunks import End, reader, still, writer
from ..recipes import Recipe, literal, pattern
from ..rig import Rig
from ..sides import LocalSide, Side, attempt
from .base import HERE, ONE_LOOP, RECEIVER_HERE, SENDER_HERE, Conformance, only, runs
from .lifecycle import end
from .peers import AWAY_RECEIVER, AWAY_SENDER

NBYTES = pytest.mark.parametrize("nbytes", [10, 100_000], ids=["small", "large"])
PROMPT = 2.0
"""Seconds within which the end of a process is known."""


class Unreadable:
    """Its decoder fails."""


def _refuse(_: Any) -> Unreadable:
    raise ValueError("this one cannot be read")


class StreamEnds(Conformance):
    # --- by the writer ----------------------------------------------------------------------------

    @NBYTES
    @runs(*HERE)
    async def test_what_was_sent_before_an_abort_comes_first(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair()
        for count in (0, 1, 5):
            source, recipes = await writer(tx, "k"), _some(nbytes, count)
            await source.send_all(recipes, finish=False)
            await source.abort("out of tokens")
            sink = await reader(rx, "k")
            for recipe in recipes:
                assert await sink.read(recipe) is None
            for _ in range(2):
                error = await attempt(sink.read())
                assert isinstance(error, StreamAborted), error
                assert error.reason == "out of tokens"
                assert (error.key, error.edge) == ("k", ("0", "1"))
            await sink.leave()
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_an_exception_is_the_reason(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        reading = asyncio.ensure_future(sink.read_all([literal(1)]))
        await source.send(literal(1))
        await source.fail("the model is gone")
        story = await reading
        assert (story.count, story.wrong) == (1, [])
        assert story.error is not None
        assert story.error.kind == "StreamAborted"
        assert story.error.fields["reason"] == "ValueError: the model is gone"

    @runs(*SENDER_HERE)
    async def test_a_cancelled_task_is_a_reason(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        transport = tx.transport

        async def write() -> None:
            async with transport.edge("0", "1").stream("k", window=2) as stream:
                for number in itertools.count():  # over a store nobody holds it back
                    await stream.send(number)

        sink = await reader(rx, "k", window=2)
        task = asyncio.create_task(write())
        assert await sink.read(literal(0)) is None
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        story = await sink.read_all([literal(n) for n in range(1, 10_000)])
        assert not story.wrong
        assert story.error is not None
        assert "cancelled" in story.error.fields["reason"]
        await sink.leave()
        await still(tx, rx)

    @NBYTES
    @runs(*HERE)
    async def test_finish_and_abort_count_once(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(pattern(nbytes))
        await source.finish()
        await source.abort("too late")
        await source.finish()
        assert isinstance(await attempt(source.send(literal(1))), UsageError)
        assert isinstance(await attempt(source.end_segment()), UsageError)
        story = await sink.read_all([pattern(nbytes)])
        assert (story.count, story.error) == (1, None)

    @runs(*SENDER_HERE)
    async def test_what_cannot_be_sent_leaves_the_stream_alone(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=1 << 20)
        assert isinstance(tx, LocalSide)
        sink = await reader(rx, "k")
        async with tx.transport.edge("0", "1").stream("k") as stream:
            await stream.send(0)
            with pytest.raises(EncodeError):
                await stream.send(object())
            with pytest.raises(PayloadTooLarge) as caught:
                await stream.send(bytes(2 << 20))
            assert caught.value.key == "k"
            assert "chunk 1 " in str(caught.value)
            await stream.send(1)
        story = await sink.read_all([literal(0), literal(1)])
        assert (story.count, story.wrong, story.error) == (2, [], None)

    # --- by the reader ----------------------------------------------------------------------------

    @NBYTES
    @runs(*HERE)
    async def test_a_reader_that_leaves_tells_the_writer(self, rig: Rig, nbytes: int) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k", window=3), await reader(rx, "k", window=3)
        sending = asyncio.ensure_future(attempt(source.send_all(_some(nbytes, 50))))
        assert await sink.read(pattern(nbytes, 0)) is None
        await sink.leave()
        await sink.leave()
        error = await asyncio.wait_for(sending, 5)
        assert isinstance(error, StreamClosed), error
        assert (error.key, error.edge) == ("k", ("0", "1"))
        assert isinstance(await attempt(source.send(literal(1))), StreamClosed)
        assert isinstance(await attempt(sink.read()), UsageError)
        await source.finish()
        await still(tx, rx)
        await rig.quiet()
        await _works(tx, rx)

    @NBYTES
    @runs(*HERE)
    async def test_a_reader_that_leaves_after_the_end(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send_all(_some(nbytes, 10))
        assert await sink.read(pattern(nbytes, 0)) is None
        await sink.leave()
        if rig.stored:  # the sender's to clean up
            await tx.cleanup("k")
        await still(tx, rx)
        await rig.quiet()

    @runs(*HERE)
    async def test_a_reader_that_leaves_before_a_writer_comes(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await (await reader(rx, "k")).leave()
        await still(tx, rx)
        await _works(tx, rx)

    @runs(*SENDER_HERE)
    async def test_leaving_wakes_a_writer_that_waits_for_memory(self, rig: Rig) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair(memory_pool_size=1 << 20)
        await tx.put("fills", pattern(900_000))
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(literal(0))
        assert await sink.read(literal(0)) is None
        sending = asyncio.ensure_future(attempt(source.send(pattern(400_000))))
        await asyncio.sleep(0.05)
        assert not sending.done()
        await sink.leave()
        assert isinstance(await asyncio.wait_for(sending, 5), StreamClosed)
        await tx.cleanup("fills")
        await still(tx, rx)
        await rig.quiet()

    @runs(*RECEIVER_HERE)
    async def test_leaving_ends_a_read_under_way(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        await source.send(literal(0))
        assert await sink.read(literal(0)) is None
        reading = asyncio.ensure_future(attempt(sink.read()))
        await asyncio.sleep(0.02)
        assert isinstance(await attempt(sink.read()), UsageError)  # one task at a time
        await sink.leave()
        assert isinstance(await asyncio.wait_for(reading, 5), UsageError)

    @NBYTES
    @runs(*ONE_LOOP)
    async def test_a_chunk_that_cannot_be_read_is_skipped(self, rig: Rig, nbytes: int) -> None:
        register_type(Unreadable, encode=lambda _: b"u" * nbytes, decode=_refuse)
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        assert isinstance(rx, LocalSide)
        async with (
            rx.transport.edge("0", "1").stream("k", window=2) as sink,
            tx.transport.edge("0", "1").stream("k", window=2) as source,
        ):
            for turn in range(3):
                await source.send(Unreadable())
                await source.send(turn)
                with pytest.raises(DecodeError, match=f"chunk {2 * turn} of stream 'k'"):
                    await sink.read(5)
                assert await sink.read(5) == turn
            await source.finish()
            with pytest.raises(StreamClosed):
                await sink.read(5)
        await still(tx, rx)
        await rig.quiet()

    # --- by their processes -------------------------------------------------------------------------

    @NBYTES
    @runs(*AWAY_SENDER, own_peer=True)
    async def test_a_killed_writer(self, rig: Rig, nbytes: int) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k"), await reader(rx, "k")
        waiting = await reader(rx, "later")
        for number in range(3):
            await source.send(pattern(nbytes, number))
        assert await sink.read(pattern(nbytes, 0)) is None
        assert await sink.read(pattern(nbytes, 1)) is None
        assert await sink.read(pattern(nbytes, 2)) is None
        reading = asyncio.ensure_future(attempt(sink.read()))
        await asyncio.sleep(0.02)
        rig.peer.kill()
        error = await asyncio.wait_for(reading, PROMPT)
        assert isinstance(error, PeerLost), error
        assert (error.key, error.edge) == ("k", ("0", "1"))
        await sink.leave()
        async with rig.opening("sender", "0") as successor:
            again = LocalSide(successor)
            await (await writer(again, "later")).send_all([pattern(nbytes, 7)])
            story = await waiting.read_all([pattern(nbytes, 7)])
            assert (story.count, story.wrong, story.error) == (1, [], None)
            await waiting.leave()
            await _works(again, rx)
            await still(again, rx)

    @NBYTES
    @runs(*AWAY_RECEIVER, own_peer=True)
    async def test_a_killed_reader(self, rig: Rig, nbytes: int) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k", window=2), await reader(rx, "k", window=2)
        sending = asyncio.ensure_future(attempt(source.send_all(_some(nbytes, 50))))
        assert await sink.read(pattern(nbytes, 0)) is None
        rig.peer.kill()
        assert isinstance(await asyncio.wait_for(sending, PROMPT), StreamClosed)
        await still(tx)
        await rig.quiet(tx)
        async with rig.opening("receiver", "1") as successor:
            await _works(tx, LocalSide(successor))

    @NBYTES
    @pytest.mark.parametrize("how", ["close", "abort"])
    @runs(*HERE)
    async def test_the_sender_is_closed(self, rig: Rig, how: str, nbytes: int) -> None:
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k", window=2), await reader(rx, "k", window=2)
        count = 5000 if rig.stored else 50  # it is still sending then
        sending = asyncio.ensure_future(attempt(source.send_all(_some(nbytes, count))))
        assert await sink.read(pattern(nbytes, 0)) is None
        await end(tx, how)
        assert isinstance(await asyncio.wait_for(sending, 5), ClosedError)
        if rig.facts.credit:
            error = await asyncio.wait_for(_last(sink), 5)
            assert isinstance(error, (StreamAborted, PeerLost)), error
        await sink.leave()
        await still(rx)
        await _works(await rig.sender(), rx)

    @NBYTES
    @pytest.mark.parametrize("how", ["close", "abort"])
    @runs(*HERE)
    async def test_the_receiver_is_closed(self, rig: Rig, how: str, nbytes: int) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k", window=2), await reader(rx, "k", window=2)
        waiting = asyncio.ensure_future(attempt((await reader(rx, "never")).read()))
        sending = asyncio.ensure_future(attempt(source.send_all(_some(nbytes, 50))))
        assert await sink.read(pattern(nbytes, 0)) is None
        await end(rx, how)
        assert isinstance(await asyncio.wait_for(waiting, 5), ClosedError)
        assert isinstance(await attempt(sink.read()), ClosedError)
        assert isinstance(await asyncio.wait_for(sending, 5), StreamClosed)
        await sink.leave()
        await still(tx)
        await rig.quiet(tx)

    # --- by clean-up and by time ----------------------------------------------------------------------

    @NBYTES
    @runs(*HERE)
    async def test_clean_up_by_the_sender(self, rig: Rig, nbytes: int) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k", window=2), await reader(rx, "k", window=2)
        waiting = asyncio.ensure_future(attempt((await reader(rx, "other")).read()))
        sending = asyncio.ensure_future(attempt(source.send_all(_some(nbytes, 50))))
        assert await sink.read(pattern(nbytes, 0)) is None
        await asyncio.sleep(0.02)
        assert await tx.cleanup("k") == 1
        assert await tx.cleanup("k") == 0
        assert isinstance(await asyncio.wait_for(sending, 5), TransferCancelled)
        assert isinstance(await asyncio.wait_for(_last(sink), 5), TransferCancelled)
        assert await tx.cleanup("other") == 1
        assert isinstance(await asyncio.wait_for(waiting, 5), TransferCancelled)
        await sink.leave()
        await rig.quiet()
        await _works(tx, rx)

    @NBYTES
    @runs(*HERE)
    async def test_clean_up_by_the_sender_when_all_was_sent(self, rig: Rig, nbytes: int) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair()
        await (await writer(tx, "k")).send_all(_some(nbytes, 5))
        sink = await reader(rx, "k", window=2)
        assert await sink.read(pattern(nbytes, 0)) is None
        await tx.cleanup("k")
        assert isinstance(await asyncio.wait_for(_last(sink), 5), TransferCancelled)
        await sink.leave()
        await still(tx, rx)
        await rig.quiet()

    @NBYTES
    @runs(*HERE)
    async def test_clean_up_by_the_receiver(self, rig: Rig, nbytes: int) -> None:
        only(rig, "credit", "over a store the two ends of a stream do not hear of each other")
        tx, rx = await rig.pair()
        source, sink = await writer(tx, "k", window=2), await reader(rx, "k", window=2)
        sending = asyncio.ensure_future(attempt(source.send_all(_some(nbytes, 50))))
        assert await sink.read(pattern(nbytes, 0)) is None
        assert await rx.cleanup("k") == 1
        assert await rx.cleanup("k") == 0
        assert isinstance(await attempt(sink.read()), TransferCancelled)
        assert isinstance(await asyncio.wait_for(sending, 5), StreamClosed)
        await sink.leave()
        await still(tx, rx)
        await rig.quiet()

    @NBYTES
    @runs(*HERE)
    async def test_draining_waits_for_readers(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair()
        await (await writer(tx, "k")).send_all(_some(nbytes, 3))
        assert await tx.drain(0.05) >= 1
        draining = asyncio.ensure_future(tx.drain(10))
        await asyncio.sleep(0.05)
        assert not draining.done()
        story = await (await reader(rx, "k")).read_all(_some(nbytes, 3))
        assert (story.count, story.wrong, story.error) == (3, [], None)
        assert await asyncio.wait_for(draining, 5) == 0

    @NBYTES
    @runs(*HERE)
    async def test_leaving_a_sender_lingers_for_readers(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.sender(linger=10.0), await rig.receiver()
        await (await writer(tx, "k")).send_all(_some(nbytes, 3))
        leaving = asyncio.ensure_future(tx.leave())
        await asyncio.sleep(0.05)
        assert not leaving.done()
        story = await (await reader(rx, "k")).read_all(_some(nbytes, 3))
        assert (story.count, story.wrong, story.error) == (3, [], None)
        await asyncio.wait_for(leaving, 5)

    @NBYTES
    @runs(*HERE)
    async def test_what_nobody_begins_to_read_expires(self, rig: Rig, nbytes: int) -> None:
        tx, rx = await rig.pair(buffer_ttl_seconds=0.3)
        await (await writer(tx, "k")).send_all(_some(nbytes, 3))
        assert await tx.drain(3) == 0
        await still(tx)
        await rig.quiet(tx)
        error = await attempt((await reader(rx, "k", name="late")).read(timeout=5))
        assert isinstance(error, KeyNotFound), error
        assert error.expired
        # Over a store whoever begins to read is told so until something is put there.
        await _works(tx, rx, "next" if rig.stored else "k")

    @NBYTES
    @runs(*HERE)
    async def test_what_is_still_written_does_not_expire(self, rig: Rig, nbytes: int) -> None:
        only(rig, "credit", "in a store each chunk expires by itself")
        tx, rx = await rig.pair(buffer_ttl_seconds=0.2)
        source = await writer(tx, "k")
        await source.send_all(_some(nbytes, 3), finish=False)
        await asyncio.sleep(0.6)
        sink = await reader(rx, "k")
        assert await sink.read(pattern(nbytes, 0)) is None
        await source.finish()
        await asyncio.sleep(0.6)
        story = await sink.read_all(_some(nbytes, 3)[1:])
        assert (story.count, story.wrong, story.error) == (2, [], None)

    # --- calls that make no sense ---------------------------------------------------------------------

    @runs(*ONE_LOOP)
    async def test_calls_at_the_wrong_time(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        assert isinstance(rx, LocalSide)
        source = tx.transport.edge("0", "1").stream("k")
        sink = rx.transport.edge("0", "1").stream("k")
        for call in (source.send(1), source.end_segment(), sink.read()):
            with pytest.raises(UsageError, match="not begun"):
                await call
        with pytest.raises(UsageError, match="not begun"):
            sink.read_nowait()
        await source.finish()  # there is nothing to end
        await sink.leave()
        for stream in (source, sink):
            async with stream:
                with pytest.raises(UsageError, match="before"):
                    await stream.__aenter__()
        for edge in (tx.transport.edge("0", "1"), rx.transport.edge("0", "1")):
            for wrong in (0, -1, 1.5, True, "8"):
                with pytest.raises(UsageError, match="window"):
                    edge.stream("k", window=wrong)  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                edge.stream("")
        with pytest.raises(UsageError, match="metadata"):
            rx.transport.edge("0", "1").stream("k", metadata="here")
        with pytest.raises(UsageError):
            tx.transport.edge("0", "1").reader("k")
        with pytest.raises(UsageError):
            rx.transport.edge("0", "1").writer("k")

    @runs(*ONE_LOOP)
    async def test_streams_of_a_closed_transport(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        assert isinstance(rx, LocalSide)
        streams = [side.transport.edge("0", "1").stream("k") for side in (tx, rx)]
        for side in (tx, rx):
            await side.close()
        for stream in streams:
            with pytest.raises(ClosedError):
                await stream.__aenter__()
        with pytest.raises(ClosedError):
            tx.transport.edge("0", "1").stream("k")

    @runs(*ONE_LOOP)
    async def test_calls_from_another_thread(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        assert isinstance(rx, LocalSide)
        async with (
            rx.transport.edge("0", "1").stream("k") as sink,
            tx.transport.edge("0", "1").stream("k") as source,
        ):
            errors: list[BaseException] = []

            def call() -> None:
                for method in (sink.read_nowait, source.finish, sink.leave):
                    with pytest.raises(UsageError) as caught:
                        method()
                    errors.append(caught.value)
                for coroutine in (source.send(1), sink.read(), source.end_segment()):
                    with pytest.raises(UsageError) as caught:
                        coroutine.send(None)
                    errors.append(caught.value)

            thread = threading.Thread(target=call)
            thread.start()
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
            assert all("thread" in str(error) for error in errors)
            assert len(errors) == 6
            await source.send(1)
            assert await sink.read(5) == 1
        await asyncio.get_running_loop().shutdown_default_executor()

    @runs(*ONE_LOOP)
    async def test_calls_in_a_forked_child(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        assert isinstance(rx, LocalSide)
        async with (
            rx.transport.edge("0", "1").stream("k") as sink,
            tx.transport.edge("0", "1").stream("k") as source,
        ):
            child = os.fork()
            if not child:
                refused = 0
                for method in (source.finish, sink.leave, sink.read_nowait):
                    try:
                        method()
                    except UsageError:
                        refused += 1
                    except BaseException:  # noqa: BLE001 - nobody else may go on from here
                        os._exit(2)
                os._exit(0 if refused == 3 else 1)
            loop = asyncio.get_running_loop()
            assert (await loop.run_in_executor(None, os.waitpid, child, 0))[1] == 0
            await source.send(1)
            assert await sink.read(5) == 1
        await loop.shutdown_default_executor()


def _some(nbytes: int, count: int) -> list[Recipe]:
    return [pattern(nbytes, number) for number in range(count)]


async def _last(sink: End) -> OmniAsyncError:
    """What stands behind the last chunk."""
    while True:
        outcome = await attempt(sink.read())
        if isinstance(outcome, OmniAsyncError):
            return outcome


async def _works(tx: Side, rx: Side, key: str = "next") -> None:
    """The next stream is none the wiser."""
    sink, source = await reader(rx, key, name="next"), await writer(tx, key)
    await source.send_all([pattern(5_000, 1), pattern(50_000, 2)])
    story = await sink.read_all([pattern(5_000, 1), pattern(50_000, 2)])
    assert (story.count, story.wrong, story.error) == (2, [], None)
    await sink.leave()
