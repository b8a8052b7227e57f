"""One line between hosts, both ends in one loop: order, coalescing, what a handler may do."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import count

import pytest

from omni_async.abc import Channel
from omni_async.errors import ProtocolError, UsageError
from omni_async.rendezvous.messages import Bye, Credit, Done, Heard, Message, Offer, encode
from tests.rendezvous.lines import Pair, Recorder, hello, pair, regions, want
from tests.rendezvous.zmq_wire import Wire, ends, local, sealed, wire, word_bytes

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

    async def test_twenty_thousand_at_once(self, ends: Pair) -> None:
        """None is lost, none comes twice, and others on the loop get their turn."""
        longest, last, over = 0.0, time.perf_counter(), asyncio.Event()

        async def tick() -> None:
            nonlocal longest, last
            while not over.is_set():
                await asyncio.sleep(0)
                now = time.perf_counter()
                longest, last = max(longest, now - last), now

        for op in range(20_000):
            ends.rx.send(want(op))
        ticker = asyncio.ensure_future(tick())
        for op in range(20_000):
            assert await ends.sender.next("received") == want(op)
        over.set()
        await ticker
        assert longest < 0.5
        assert len(ends.sender.words) == 20_000

    async def test_one_a_turn_twenty_thousand_times(self, ends: Pair) -> None:
        for op in range(20_000):
            ends.tx.send(Done(op))
            if op % 3 == 0:
                await asyncio.sleep(0)
        for op in range(20_000):
            assert await ends.receiver.next("received") == Done(op)

    async def test_first_word_of_a_turn_leaves_at_once_the_others_together(
        self, wire: Wire
    ) -> None:
        await asyncio.sleep(0)
        for op in range(10):
            wire.line.send(Done(op))
        assert wire.bare.has_come()  # this loop has not had a turn since
        assert await wire.bare.words() == [Done(0)]
        assert await wire.bare.words() == [Done(op) for op in range(1, 10)]
        wire.line.send(Done(10))
        assert wire.bare.has_come()
        assert await wire.bare.words() == [Done(10)]

    async def test_flush_does_not_wait_for_the_turn_to_end(self, wire: Wire) -> None:
        wire.line.send(Done(1))
        wire.line.send(Done(2))
        wire.line.flush()
        wire.line.send(Done(3))
        assert await wire.bare.words() == [Done(1)]
        assert await wire.bare.words() == [Done(2)]
        assert await wire.bare.words() == [Done(3)]

    async def test_answers_to_a_batch_leave_with_it(self, wire: Wire) -> None:
        wire.handler.answer = [Done(1)]
        wire.bare.word(*[want(1)] * 50)
        for _ in range(50):
            await wire.handler.next("received")
        assert await wire.bare.words() == [Done(1)]
        assert await wire.bare.words() == [Done(1)] * 49

    async def test_words_that_belong_together_leave_together(self, wire: Wire) -> None:
        wire.line.send_many([Done(op) for op in range(5)])
        wire.line.send_many([Done(op) for op in range(5, 10)])
        assert await wire.bare.words() == [Done(op) for op in range(5)]
        assert await wire.bare.words() == [Done(op) for op in range(5, 10)]
        wire.line.send_many([])
        wire.line.close()
        wire.line.send_many([Done(1)])
        assert await wire.bare.words() == []

    async def test_one_of_many_is_too_long(self, namespace: str) -> None:
        async with pair(local(max_message=2000), namespace) as ends:
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="at most 2000"):
                ends.tx.send_many([Done(1), Bye("x" * 3000), Done(3)])
            ends.tx.send(Done(4))
            assert await ends.receiver.next("received") == Done(1)
            assert await ends.receiver.next("received") == Done(4)

    async def test_poll_hands_over_what_has_arrived(self, ends: Pair) -> None:
        for number in count(1):
            ends.rx.send(want(number))
            ends.rx.flush()
            over = time.monotonic() + 5
            while want(number) not in ends.sender.words and time.monotonic() < over:
                ends.tx.poll()  # and this loop has no turn in between
            assert ends.sender.words[-1] == want(number)
            if number == 3:
                break
        ends.rx.close()
        await ends.sender.next("ended")
        ends.tx.poll()

    async def test_large_words(self, ends: Pair) -> None:
        words = [Offer(1, 1, [1], [], [], os.urandom(size)) for size in (1, 1 << 16, 15 << 20, 5)]
        for word in words:
            ends.tx.send(word)
            ends.tx.send(Done(1))
        for word in words:
            assert await ends.receiver.next("received") == word
            assert await ends.receiver.next("received") == Done(1)

    async def test_too_long_a_word_is_refused_here(self, namespace: str) -> None:
        async with pair(local(max_message=2000), namespace) as ends:
            for _ in range(2):
                with pytest.raises(UsageError, match="at most 2000"):
                    ends.tx.send(Bye("x" * 3000))
            ends.tx.send(Done(1))
            assert await ends.receiver.next("received") == Done(1)

    async def test_descriptors_do_not_travel(self, ends: Pair) -> None:
        with pytest.raises(UsageError, match="between hosts"):
            ends.tx.send(regions(1), [0])

    async def test_after_the_end_send_does_nothing(self, ends: Pair) -> None:
        ends.tx.close()
        ends.tx.close()
        ends.tx.send(Done(1))
        ends.tx.flush()
        ends.tx.poll()
        assert ends.tx.queued >= 0
        assert await ends.receiver.next("ended") is None
        assert ends.receiver.words == []
        assert ends.sender.queue("ended").empty()  # who closes is not told

    async def test_credit_of_a_thousand_words_is_one_message(self, wire: Wire) -> None:
        await asyncio.sleep(0)
        for _ in range(1000):
            wire.line.send(Credit(1, 1))
        assert await wire.bare.words() == [Credit(1, 1)]
        assert await wire.bare.words() == [Credit(1, 1)] * 999


class TestReceiving:
    async def test_many_words_in_one_message(self, wire: Wire) -> None:
        wire.bare.word(*(want(op) for op in range(1000)))
        wire.bare.word(want(1000))
        await wire.handler.next("received")
        assert len(wire.handler.words) < 1000  # others get their turn in between
        for _ in range(1000):
            await wire.handler.next("received")
        assert wire.handler.words == [want(op) for op in range(1001)]

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (sealed(b"\xc1garbage"), "not a word"),
            (sealed(b""), "not a word"),
            (b"\xff\xff\xff\xff", "limit"),
            (b"\xff\x00\x00\x00abc", "before its word"),
            (word_bytes(hello("receiver", "n")), "second Hello"),
            (word_bytes(Heard(1 << 40, 1)), "has taken 1 messages"),
        ],
        ids=["garbage", "empty", "too long", "cut off", "second Hello", "taken what was not said"],
    )
    async def test_nonsense_ends_this_line_only(
        self, ends: Pair, wire: Wire, data: bytes, text: str
    ) -> None:
        wire.bare.say(word_bytes(want(1)) + data + word_bytes(want(2)))
        wire.bare.word(want(3))
        error = await wire.handler.next("ended")
        assert isinstance(error, ProtocolError)
        assert text in str(error)
        assert f"process {os.getpid()}" in str(error)
        assert wire.handler.words == [want(1)]
        (bye,) = await wire.bare.words()  # the other side is told why
        assert isinstance(bye, Bye)
        assert text in bye.reason
        assert bye.held is None
        assert await wire.bare.words() == []
        ends.rx.send(want(3))
        assert await ends.sender.next("received") == want(3)
        assert wire.house.listener.dropped == 0  # what it said after is not held against it

    async def test_message_of_several_parts(self, wire: Wire) -> None:
        wire.bare.say(encode(want(1)), encode(want(2)))
        error = await wire.handler.next("ended")
        assert "2 parts" in str(error)

    async def test_failing_handler_does_not_stop_the_words_behind(self, namespace: str) -> None:
        class Fussy(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                super().received(channel, message, fds)
                if message in (want(2), want(5)):
                    raise ZeroDivisionError("a mistake of the handler")

        seen: list[BaseException | None] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(context.get("exception")))
        ends = Pair(local(), namespace)
        ends.sender = Fussy()
        await ends.open()
        for op in range(1, 7):
            ends.rx.send(want(op))
        for op in range(1, 7):
            assert await ends.sender.next("received") == want(op)
        assert [type(error) for error in seen] == [ZeroDivisionError] * 2
        ends.rx.send(want(7))
        assert await ends.sender.next("received") == want(7)
        ends.close()

    async def test_handler_that_closes_and_fails_does_not_stop_other_lines(
        self, namespace: str
    ) -> None:
        class Wreck(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                super().received(channel, message, fds)
                if message == want(1):
                    channel.close()
                    raise ZeroDivisionError("a mistake of the handler")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        ends = Pair(local(), namespace)
        ends.sender = Wreck()
        await ends.open()
        ends.rx.send_many([want(1), want(2)])
        await ends.receiver.next("ended")
        second = await ends.receiver.next("opened")
        second.send(want(3))
        await ends.sender.next("received")
        assert await ends.sender.next("received") == want(3)
        ends.close()

    async def test_handler_that_finds_a_broken_rule_ends_the_line(self, namespace: str) -> None:
        class Strict(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                raise ProtocolError("that word makes no sense here")

        ends = Pair(local(), namespace)
        ends.sender = Strict()
        await ends.open()
        ends.rx.send(want(1))
        error = await ends.sender.next("ended")
        assert "makes no sense" in str(error)
        bye = await ends.receiver.next("received")
        assert "makes no sense" in bye.reason
        await ends.receiver.next("ended")
        ends.close()

    @pytest.mark.parametrize("side", ["sender", "receiver"])
    async def test_so_does_one_that_finds_it_in_the_first_word(
        self, namespace: str, side: str
    ) -> None:
        class Strict(Recorder):
            def opened(self, channel: Channel) -> None:
                super().opened(channel)
                raise ProtocolError("that engine makes no sense here")

        ends = Pair(local(), namespace)
        setattr(ends, side, Strict())
        handler = getattr(ends, side)
        ends.listener = await ends.channels.listen(
            ends.endpoint, hello("sender", namespace), ends.sender
        )
        ends.dialer = ends.channels.dial(
            ends.listener.address, hello("receiver", namespace), ends.receiver
        )
        assert "makes no sense" in str(await handler.next("ended"))
        await (ends.receiver if side == "sender" else ends.sender).next("ended")
        ends.close()

    async def test_close_from_inside_received(self, namespace: str) -> None:
        class Leaver(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                super().received(channel, message, fds)
                channel.close()

        for words in ([want(1), want(2)], [want(1)]):
            both = Pair(local(), namespace)
            both.sender = Leaver()
            await both.open()
            both.rx.send_many(words)
            both.rx.send(want(3))
            assert await both.receiver.next("ended") is None
            assert both.sender.words == [want(1)]
            assert both.sender.queue("ended").empty()
            both.close()

    async def test_nothing_is_handed_over_after_close(self, wire: Wire) -> None:
        """Not even words that have come and wait for the next turn."""
        seen = 0
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def received(channel: Channel, message: Message, fds: list[int]) -> None:
            nonlocal seen
            seen += 1
            if seen == 200:
                loop.call_soon(channel.close)
                loop.call_soon(over.set)

        wire.handler.received = received  # type: ignore[method-assign]
        wire.bare.word(*[want(1)] * 600)
        await over.wait()
        assert await wire.bare.words() == []
        assert seen == 256
