"""Windows between hosts, and the ways a line ends."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from omni_async.abc import Channel
from omni_async.errors import ProtocolError
from omni_async.rendezvous.messages import Bye, Done, Heard, Offer
from omni_async.rendezvous.zmq_channel import ZmqLine
from omni_async.rendezvous.zmq_sockets import ReadySocket
from omni_async.rendezvous.zmq_window import MESSAGES, WINDOW
from tests.rendezvous.lines import Pair, pair, want
from tests.rendezvous.zmq_wire import Wire, ends, local, until, wire, wired

__all__ = ["ends", "wire"]

CHUNK = 100_000


def offer(op: int) -> Offer:
    return Offer(op, 1, [1], [], [], bytes(CHUNK))


def socket_of(channel: Channel) -> ReadySocket:
    """What is read for a receiver's line."""
    post: Any = getattr(channel, "_post")  # noqa: B009
    ready = post._ready
    assert isinstance(ready, ReadySocket)
    return ready


class TestHoldingBack:
    async def test_who_takes_nothing_is_sent_a_window_full(self, ends: Pair) -> None:
        standing = socket_of(ends.rx)
        standing.busy = True
        for op in range(640):
            ends.tx.send(offer(op))
            if op % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert ends.tx.queued > 640 * CHUNK
        assert isinstance(ends.tx, ZmqLine)
        assert WINDOW <= ends.tx._window.outstanding.nbytes < WINDOW + 2 * CHUNK
        ends.tx.send(Done(640))  # does not overtake
        standing.resume()
        for op in range(640):
            assert (await ends.receiver.next("received")).op == op
        assert await ends.receiver.next("received") == Done(640)
        await until(lambda: ends.tx.queued < 2 * CHUNK)

    async def test_both_ways_at_once(self, ends: Pair) -> None:
        """Neither waits for the other's room."""
        for op in range(300):
            ends.tx.send(offer(op))
            ends.rx.send(offer(op))
        for op in range(300):
            assert (await ends.receiver.next("received")).op == op
            assert (await ends.sender.next("received")).op == op

    async def test_small_words_are_counted_too(self, ends: Pair) -> None:
        standing = socket_of(ends.rx)
        standing.busy = True
        for op in range(3 * MESSAGES):
            ends.tx.send(Done(op))
            await asyncio.sleep(0)
        assert isinstance(ends.tx, ZmqLine)
        assert ends.tx._window.outstanding.messages == MESSAGES
        standing.resume()
        for op in range(3 * MESSAGES):
            assert await ends.receiver.next("received") == Done(op)

    async def test_who_waits_until_little_is_queued_is_called_once(self, ends: Pair) -> None:
        called: list[int] = []
        ends.tx.when_written(lambda: called.append(ends.tx.queued))
        assert called == []  # not from inside of its own call
        await asyncio.sleep(0)
        assert len(called) == 1
        standing = socket_of(ends.rx)
        standing.busy = True
        for op in range(200):
            ends.tx.send(offer(op))
        ends.tx.when_written(lambda: called.append(ends.tx.queued))
        await asyncio.sleep(0.05)
        assert len(called) == 1
        standing.resume()
        for _ in range(200):
            await ends.receiver.next("received")
        await asyncio.sleep(0.2)
        assert len(called) == 2
        assert called[1] <= 256 << 10

    async def test_who_waits_until_little_is_queued_hears_of_the_end(self, wire: Wire) -> None:
        called: list[int] = []
        for op in range(200):
            wire.line.send(offer(op))
        wire.line.when_written(lambda: called.append(1))
        await asyncio.sleep(0)
        assert called == []
        wire.line.close()
        await asyncio.sleep(0)
        assert called == [1]

    async def test_what_was_taken_is_told_in_steps(self, wire: Wire) -> None:
        for op in range(10):
            wire.bare.word(offer(op))
        told: list[int] = []
        while not told or told[-1] < 9 * CHUNK:
            (word,) = await wire.bare.words()
            assert isinstance(word, Heard)
            told.append(word.nbytes)
        assert len(told) <= 7
        assert told == sorted(told)

    async def test_and_at_rest_within_moments(self, namespace: str) -> None:
        async with pair(local(silent_after=0.2), namespace) as ends:
            ends.tx.send(offer(1))
            await ends.receiver.next("received")
            assert ends.tx.queued > CHUNK
            await until(lambda: ends.tx.queued <= 4 << 10)

    async def test_what_has_no_room_is_not_sent_when_the_line_ends(self, wire: Wire) -> None:
        """What arrives is what was said first: there is never a gap."""
        for op in range(200):
            wire.line.send(offer(op))
        wire.line.send(Bye("closed"))
        wire.line.close()
        ops = []
        while words := await wire.bare.words():
            ops += [word.op for word in words if isinstance(word, Offer)]
        assert ops == list(range(len(ops)))
        assert 80 < len(ops) < 100


class TestEnds:
    async def test_end_of_a_connection(self, wire: Wire) -> None:
        wire.bare.word(want(1))
        wire.bare.close()
        assert await wire.handler.next("received") == want(1)
        began = time.monotonic()
        assert await wire.handler.next("ended") is None
        assert time.monotonic() - began < 0.5

    async def test_what_was_said_last_is_heard_before_the_end(self, wire: Wire) -> None:
        """As many messages as a window holds, none of them read before the connection is over."""
        wire.house.listener._ready.busy = True
        for op in range(MESSAGES):
            wire.bare.word(want(op))
        wire.bare.close(1.0)
        await asyncio.sleep(0.2)
        wire.house.listener._ready.resume()
        assert await wire.handler.next("ended") is None
        assert wire.handler.words == [want(op) for op in range(MESSAGES)]

    async def test_end_that_was_said(self, wire: Wire) -> None:
        wire.bare.word(want(1), Bye("held", [1]))
        wire.bare.say(b"")
        assert await wire.handler.next("received") == want(1)
        assert await wire.handler.next("received") == Bye("held", [1])
        assert await wire.handler.next("ended") is None
        wire.bare.word(want(2))  # nobody listens any more, and nobody minds
        await asyncio.sleep(0.02)
        assert wire.handler.words == [want(1), Bye("held", [1])]
        assert wire.house.listener.dropped == 0

    async def test_close_delivers_what_was_sent(self, ends: Pair) -> None:
        for op in range(1000):
            ends.tx.send(Done(op))
        ends.tx.close()
        await ends.receiver.next("ended")
        assert ends.receiver.words == [Done(op) for op in range(1000)]

    async def test_so_does_the_receivers(self, ends: Pair) -> None:
        for op in range(1000):
            ends.rx.send(want(op))
        ends.rx.send(Bye("over", []))
        ends.rx.flush()
        ends.dialer.close()
        await ends.sender.next("ended")
        assert ends.sender.words == [*(want(op) for op in range(1000)), Bye("over", [])]

    async def test_detach_ends_it_and_keeps_nothing(self, ends: Pair) -> None:
        assert not ends.rx.end_proves
        ends.rx.send(want(1))
        assert ends.rx.detach() == -1
        assert ends.rx.detach() == -1
        assert await ends.sender.next("received") == want(1)
        assert await ends.sender.next("ended") is None
        assert ends.receiver.queue("ended").empty()

    async def test_bye_without_an_end(self, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("omni_async.rendezvous.zmq_line._LAST_WORDS", 0.1)
        wire.bare.word(Bye("no more"), want(1))
        assert await wire.handler.next("received") == Bye("no more")
        assert await wire.handler.next("received") == want(1)
        wire.line.send(Done(1))  # nobody would read it
        error = await wire.handler.next("ended")
        assert isinstance(error, ProtocolError)
        assert "does not listen" in str(error)
        assert await wire.bare.words() == []

    async def test_bye_and_end_are_an_orderly_end(self, ends: Pair) -> None:
        ends.tx.send(Bye("closed"))
        ends.tx.close()
        assert await ends.receiver.next("received") == Bye("closed")
        assert await ends.receiver.next("ended") is None

    async def test_end_while_words_wait_for_room(self, ends: Pair) -> None:
        for op in range(200):
            ends.tx.send(offer(op))
        ends.rx.close()
        await ends.sender.next("ended")
        ends.tx.send(Done(1))
        await asyncio.sleep(0.01)
        assert ends.sender.queue("ended").empty()

    async def test_sending_to_who_has_gone(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without word of the end, the sending itself finds out; never from inside of it."""
        monkeypatch.setattr("omni_async.rendezvous.zmq_line._WORD_OF_END", 0.1)
        async with wired(local(), namespace) as wire:
            wire.house.listener._monitor.close()
            wire.bare.close()
            for _ in range(1000):
                await asyncio.sleep(0.01)
                wire.line.send(Done(1))
                if not wire.handler.queue("ended").empty():
                    break
            assert isinstance(await wire.handler.next("ended"), ConnectionResetError)

    async def test_an_end_beside_a_peer_that_never_stops_talking(self, namespace: str) -> None:
        """The socket is never empty, and nobody waits for that."""
        async with wired(local(), namespace) as wire:
            other = wire.house.bare()
            await other.hello(wire.house.namespace)
            await wire.handler.next("opened")
            wire.house.listener._ready._on_dry = None
            other.word(want(7))
            other.close()

            async def talk() -> None:
                while True:
                    wire.bare.word(*[want(1)] * 10)
                    wire.bare.word(want(1))
                    await asyncio.sleep(0.001)

            talking = asyncio.ensure_future(talk())
            assert await wire.handler.next("ended", 5) is None
            assert want(7) in wire.handler.words
            talking.cancel()

    async def test_many_lines_come_and_go(self, namespace: str) -> None:
        async with wired(local(), namespace) as wire:
            for _ in range(50):
                bare = wire.house.bare()
                await bare.hello(wire.house.namespace)
                line = await wire.handler.next("opened")
                bare.word(want(1))
                await wire.handler.next("received")
                line.send(Done(1))
                assert await bare.words() == [Done(1)]
                bare.close(0.0)
                assert await wire.handler.next("ended") is None
            listener = wire.house.listener
            assert len(listener._posts) == len(listener._connections) == listener._lines == 1
            assert listener.dropped == 0


class TestSignsOfLife:
    async def test_two_idle_ends_keep_each_other_awake(self, namespace: str) -> None:
        async with pair(local(silent_after=0.2), namespace) as ends:
            await asyncio.sleep(1.0)
            assert ends.sender.queue("silent").empty()
            assert ends.receiver.queue("silent").empty()

    async def test_silence_is_told_twice_and_ends_with_a_word(self, namespace: str) -> None:
        channels = local(silent_after=0.1, peer_timeout=0.3)
        async with wired(channels, namespace) as wire:
            first = await wire.handler.next("silent")
            second = await wire.handler.next("silent")
            assert 0.1 <= first < 0.3 <= second
            wire.bare.word(want(1))
            await wire.handler.next("received")
            assert await wire.handler.next("silent") < 0.3
            assert wire.handler.queue("ended").empty()

    async def test_own_blocked_loop_accuses_nobody(self, namespace: str) -> None:
        async with pair(local(silent_after=0.3), namespace) as ends:
            time.sleep(0.6)  # noqa: ASYNC251 - that is what is tried
            await asyncio.sleep(0.1)
            assert ends.sender.queue("silent").empty()
            assert ends.receiver.queue("silent").empty()

    async def test_close_from_inside_silent(self, namespace: str) -> None:
        async with wired(local(silent_after=0.05), namespace) as wire:
            silences: list[float] = []

            def silent(channel: Channel, seconds: float) -> None:
                silences.append(seconds)
                channel.close()

            wire.handler.silent = silent  # type: ignore[method-assign]
            await asyncio.sleep(0.4)
            assert len(silences) == 1

    async def test_nothing_is_added_for_who_takes_nothing(self, namespace: str) -> None:
        async with wired(local(silent_after=0.05), namespace) as wire:
            wire.bare.ready.busy = True
            for op in range(200):
                wire.line.send(offer(op))
            await asyncio.sleep(0.01)
            queued = wire.line.queued
            await asyncio.sleep(0.3)
            assert wire.line.queued == queued


async def test_names_are_for_people(ends: Pair) -> None:
    assert ends.tx.name == f"tcp://127.0.0.1 (process {os.getpid()})"
    assert ends.rx.name == f"{ends.listener.address} (process {os.getpid()})"
    assert ends.listener.host == "127.0.0.1"
    assert ends.listener.address == f"tcp://127.0.0.1:{ends.listener.port}"
