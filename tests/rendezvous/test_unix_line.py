"""One line, both ends in one loop: order, coalescing, what a handler may do."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from omni_async.abc import Channel
from omni_async.errors import ProtocolError, UsageError
from omni_async.rendezvous.framing import FrameReader, close_fds
from omni_async.rendezvous.messages import Bye, Credit, Done, Message, Offer, encode
from omni_async.rendezvous.unix_channel import UnixChannels
from tests.descriptors import open_descriptors
from tests.rendezvous.lines import Pair, Recorder, hello, pair, regions, want
from tests.rendezvous.test_unix_framing import feed, frame
from tests.rendezvous.test_unix_outbox import same_file
from tests.rendezvous.wire import Wire, drain, drain_end, ends, wire

__all__ = ["ends", "wire"]


class TestSending:
    async def test_both_ways_in_order(self, ends: Pair) -> None:
        for op in range(500):
            ends.rx.send(want(op))
            ends.tx.send(Done(op))
        for op in range(500):
            assert await ends.sender.next("received") == want(op)
            assert await ends.receiver.next("received") == Done(op)
        assert ends.sender.fds == [[]] * 500

    async def test_first_word_of_a_turn_leaves_at_once_the_others_together(
        self, wire: Wire
    ) -> None:
        size = len(frame(encode(Done(1))))
        for _ in range(10):
            wire.line.send(Done(1))
        assert drain(wire.sock) == [size]
        assert wire.line.queued == 9 * size
        await asyncio.sleep(0)
        assert wire.line.queued == 0
        assert sum(drain(wire.sock)) == 9 * size
        wire.line.send(Done(1))
        assert drain(wire.sock) == [size]

    async def test_flush_does_not_wait_for_the_turn_to_end(self, wire: Wire) -> None:
        size = len(frame(encode(Done(1))))
        wire.line.send(Done(1))
        wire.line.send(Done(1))
        wire.line.flush()
        assert wire.line.queued == 0
        assert sum(drain(wire.sock)) == 2 * size

    async def test_who_waits_until_little_is_queued_is_called_once(self, wire: Wire) -> None:
        called: list[int] = []
        wire.line.when_written(lambda: called.append(wire.line.queued))
        assert called == []  # not from inside of its own call
        await asyncio.sleep(0)
        assert called == [0]
        while wire.line.queued < 8 << 20:
            wire.line.send(Offer(1, 1, [1], [], [], bytes(100_000)))
        wire.line.when_written(lambda: called.append(wire.line.queued))
        await asyncio.sleep(0.01)
        assert len(called) == 1
        while len(called) == 1:
            drain(wire.sock)
            await asyncio.sleep(0)
        assert called[1] <= 256 << 10
        while wire.line.queued:
            drain(wire.sock)
            await asyncio.sleep(0)
        assert len(called) == 2

    async def test_who_waits_until_little_is_queued_hears_of_the_end(self, wire: Wire) -> None:
        called: list[int] = []
        while wire.line.queued < 8 << 20:
            wire.line.send(Offer(1, 1, [1], [], [], bytes(100_000)))
        wire.line.when_written(lambda: called.append(1))
        wire.line.close()
        await asyncio.sleep(0)
        assert called == [1]

    async def test_answers_to_a_batch_leave_with_it(self, wire: Wire) -> None:
        wire.handler.answer = [Done(1)]
        wire.sock.send(frame(encode(want(1))) * 50)
        for _ in range(50):
            await wire.handler.next("received")
        assert wire.line.queued == 0
        assert sum(drain(wire.sock)) == 50 * len(frame(encode(Done(1))))

    async def test_words_that_belong_together_leave_together(self, wire: Wire) -> None:
        size = len(frame(encode(Done(1))))
        wire.line.send_many([Done(1)] * 5)
        assert sum(drain(wire.sock)) == 5 * size
        wire.line.send_many([Done(1)] * 5)
        assert drain(wire.sock) == []
        await asyncio.sleep(0)
        assert sum(drain(wire.sock)) == 5 * size
        wire.line.send_many([])
        wire.line.close()
        wire.line.send_many([Done(1)])
        assert drain(wire.sock) == []

    async def test_one_of_many_is_refused(self, ends: Pair) -> None:
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="descriptors"):
            ends.tx.send_many([Done(1), regions(1), Done(3)])
        ends.tx.send(Done(4))
        assert await ends.receiver.next("received") == Done(1)
        assert await ends.receiver.next("received") == Done(4)

    async def test_poll_hands_over_what_has_arrived(self, ends: Pair) -> None:
        await asyncio.sleep(0)
        ends.rx.send(want(1))
        assert ends.sender.words == []
        ends.tx.poll()
        assert ends.sender.words == [want(1)]
        ends.tx.poll()
        ends.rx.close()
        ends.tx.poll()
        assert ends.sender.events[-1] == ("ended", None)
        ends.tx.poll()

    async def test_more_than_the_socket_takes(self, ends: Pair) -> None:
        word = Offer(1, 1, [1], [], [], os.urandom(1 << 20))
        for _ in range(8):
            ends.tx.send(word)
        assert ends.tx.queued > 1 << 20
        ends.tx.flush()
        for _ in range(8):
            assert await ends.receiver.next("received") == word
        assert ends.tx.queued == 0

    async def test_too_long_a_word_is_refused_here(self, namespace: str) -> None:
        async with pair(UnixChannels(max_message=2000), namespace) as ends:
            with pytest.raises(UsageError, match="at most 2000"):
                ends.tx.send(Bye("x" * 3000))
            ends.tx.send(Done(1))
            assert await ends.receiver.next("received") == Done(1)

    async def test_descriptors_arrive_with_their_word(self, ends: Pair) -> None:
        r, w = os.pipe()
        ends.tx.send(Done(1))
        ends.tx.send(regions(2), [r, w])
        ends.tx.send(Done(2))
        for _ in range(3):
            await ends.receiver.next("received")
        assert [len(fds) for fds in ends.receiver.fds] == [0, 2, 0]
        got = ends.receiver.fds[1]
        assert same_file(got[0], r)
        assert same_file(got[1], w)
        assert not os.get_inheritable(got[0])
        close_fds([r, w, *got])

    async def test_wrong_number_of_descriptors_is_refused_here(self, ends: Pair) -> None:
        with pytest.raises(UsageError, match="descriptors"):
            ends.tx.send(regions(1))
        with pytest.raises(UsageError, match="descriptors"):
            ends.tx.send(Done(1), [0])

    async def test_after_the_end_send_does_nothing(self, ends: Pair) -> None:
        ends.tx.close()
        ends.tx.close()
        ends.tx.send(Done(1))
        ends.tx.send(regions(1), [0])
        ends.tx.flush()
        assert ends.tx.queued == 0
        assert await ends.receiver.next("ended") is None
        assert ends.receiver.words == []
        assert ends.sender.queue("ended").empty()  # who closes is not told


class TestReceiving:
    async def test_many_records_in_one_wake_up(self, wire: Wire) -> None:
        await asyncio.sleep(0)
        wire.sock.send(b"".join(frame(encode(want(op))) for op in range(1000)))
        await wire.handler.next("received")
        assert len(wire.handler.words) < 1000  # others get their turn in between
        for _ in range(999):
            await wire.handler.next("received")
        assert wire.handler.words == [want(op) for op in range(1000)]

    async def test_more_words_come_while_others_wait(self, wire: Wire) -> None:
        for op in range(0, 3000, 300):
            wire.sock.send(b"".join(frame(encode(want(op + n))) for n in range(300)))
        for op in range(3000):
            assert await wire.handler.next("received") == want(op)
        assert len(wire.handler.words) == 3000

    async def test_words_that_wait_are_heard_before_the_end(self, wire: Wire) -> None:
        """Also when writing to the peer has failed already."""
        wire.sock.send(b"".join(frame(encode(want(op))) for op in range(1500)))
        wire.sock.close()
        wire.line.send(Done(1))
        await wire.handler.next("ended")
        assert wire.handler.words == [want(op) for op in range(1500)]

    async def test_a_word_in_single_bytes(self, wire: Wire) -> None:
        for byte in frame(encode(want(7))):
            wire.sock.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await wire.handler.next("received") == want(7)

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (frame(b"\xc1garbage"), "not a word"),
            (frame(b""), "not a word"),
            (b"\xff\xff\xff\xff", "limit"),
            (frame(encode(regions(1))), "descriptors belong"),
            (frame(encode(hello("receiver", "n"))), "second Hello"),
        ],
        ids=["garbage", "empty", "too long", "no descriptors", "second Hello"],
    )
    async def test_nonsense_ends_this_line_only(
        self, ends: Pair, wire: Wire, data: bytes, text: str
    ) -> None:
        wire.sock.send(frame(encode(want(1))) + data + frame(encode(want(2))))
        error = await wire.handler.next("ended")
        assert isinstance(error, ProtocolError)
        assert text in str(error)
        assert f"process {os.getpid()}" in str(error)
        assert wire.handler.words == [want(1)]
        (bye,) = feed(FrameReader(), wire.sock.recv(1000))  # the other side is told why
        assert isinstance(bye, Bye)
        assert text in bye.reason
        assert bye.held is None
        assert wire.sock.recv(1) == b""
        ends.rx.send(want(3))
        assert await ends.sender.next("received") == want(3)

    async def test_truncated_word(self, wire: Wire) -> None:
        wire.sock.send(frame(encode(want(1)))[:-3])
        wire.sock.close()
        error = await wire.handler.next("ended")
        assert isinstance(error, ProtocolError)
        assert "inside a word" in str(error)

    async def test_stray_descriptors_are_closed(self, wire: Wire) -> None:
        r, w = os.pipe()
        socket.send_fds(wire.sock, [frame(encode(want(1)))], [r])
        assert await wire.handler.next("received") == want(1)
        os.close(r)
        with pytest.raises(BrokenPipeError):
            os.write(w, b"x")
        os.close(w)

    async def test_flood_of_descriptors(self, wire: Wire) -> None:
        before = len(open_descriptors())
        wire.sock.send(frame(encode(want(1)))[:3])
        for _ in range(2):
            socket.send_fds(wire.sock, [b"\0"], [0] * 200)
        error = await wire.handler.next("ended")
        assert isinstance(error, ProtocolError)
        assert "without a word" in str(error)
        assert len(open_descriptors()) == before - 1

    async def test_no_descriptor_left_to_receive_with(self, wire: Wire) -> None:
        import resource

        r, w = os.pipe()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        socket.send_fds(wire.sock, [frame(encode(regions(50)))], [r] * 50)
        resource.setrlimit(resource.RLIMIT_NOFILE, (w + 10, hard))
        try:
            error = await wire.handler.next("ended")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert isinstance(error, ProtocolError)
        assert "ulimit" in str(error)
        close_fds([r, w])

    async def test_failing_handler_does_not_stop_the_words_behind(self, namespace: str) -> None:
        class Fussy(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                super().received(channel, message, fds)
                if message == want(2):
                    raise ZeroDivisionError("a mistake of the handler")

        seen: list[BaseException | None] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(context.get("exception")))
        ends = Pair(UnixChannels(), namespace)
        ends.sender = Fussy()
        await ends.open()
        for op in range(1, 6):
            ends.rx.send(want(op))
        for op in range(1, 6):
            assert await ends.sender.next("received") == want(op)
        assert [type(error) for error in seen] == [ZeroDivisionError]
        ends.close()

    async def test_handler_that_finds_a_broken_rule_ends_the_line(self, namespace: str) -> None:
        class Strict(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                raise ProtocolError("that word makes no sense here")

        ends = Pair(UnixChannels(), namespace)
        ends.sender = Strict()
        await ends.open()
        ends.rx.send(want(1))
        error = await ends.sender.next("ended")
        assert "makes no sense" in str(error)
        await ends.receiver.next("ended")
        ends.close()

    async def test_close_from_inside_received(self, namespace: str) -> None:
        class Leaver(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                super().received(channel, message, fds)
                channel.close()

        ends = Pair(UnixChannels(), namespace)
        ends.sender = Leaver()
        await ends.open()
        r, w = os.pipe()
        ends.rx.send(want(1))
        ends.rx.send(want(2))
        ends.rx.send(regions(1), [r])
        await ends.receiver.next("ended")
        assert ends.sender.words == [want(1)]
        assert ends.sender.queue("ended").empty()
        ends.close()
        close_fds([r, w])

    async def test_nothing_is_handed_over_after_close(self, wire: Wire) -> None:
        """Not even words that have come and wait for the next turn."""
        count = 0
        loop = asyncio.get_running_loop()

        def received(channel: Channel, message: Message, fds: list[int]) -> None:
            nonlocal count
            count += 1
            if count == 200:
                loop.call_soon(channel.close)

        wire.handler.received = received  # type: ignore[method-assign]
        wire.sock.send(frame(encode(want(1))) * 600)
        while not drain_end(wire.sock):  # noqa: ASYNC110 - a socket outside of the loop
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert count == 256


async def test_credit_of_a_thousand_words_is_one_write(wire: Wire) -> None:
    """What is coalesced goes out by one system call."""
    await asyncio.sleep(0)
    writes: list[int] = []
    sock = wire.line._outbox._sock

    class Counting:
        def send(self, data: bytes) -> int:
            writes.append(len(data))
            return sock.send(data)

    wire.line._outbox._sock = Counting()  # type: ignore[assignment]
    for _ in range(1000):
        wire.line.send(Credit(1, 1))
    await asyncio.sleep(0)
    assert len(writes) == 2
    wire.line._outbox._sock = sock
