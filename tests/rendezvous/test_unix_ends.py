"""The ways a line ends, and what each of them proves."""

from __future__ import annotations

import asyncio
import os

from omni_async.abc import Channel
from omni_async.errors import ProtocolError
from omni_async.rendezvous.messages import Bye, Done, Offer, encode
from tests.rendezvous.lines import Pair, want
from tests.rendezvous.test_unix_framing import frame
from tests.rendezvous.wire import Wire, ends, wire

__all__ = ["ends", "wire"]


class TestEnds:
    async def test_end_of_file(self, wire: Wire) -> None:
        wire.sock.send(frame(encode(want(1))))
        wire.sock.close()
        assert await wire.handler.next("received") == want(1)
        assert await wire.handler.next("ended") is None

    async def test_last_words_are_read_although_ours_fail(self, wire: Wire) -> None:
        """A peer says Bye and closes while we write to it: its Bye is heard, then its end."""
        wire.sock.send(frame(encode(Bye("done"))))
        wire.sock.close()
        wire.line.send(Done(1))
        wire.line.send(Done(2))
        assert await wire.handler.next("received") == Bye("done")
        await wire.handler.next("ended")
        assert len(wire.handler.events) == 3

    async def test_close_delivers_what_was_sent(self, ends: Pair) -> None:
        for op in range(1000):
            ends.tx.send(Done(op))
        ends.tx.close()
        await ends.receiver.next("ended")
        assert ends.receiver.words == [Done(op) for op in range(1000)]

    async def test_detach_keeps_the_descriptor(self, ends: Pair) -> None:
        ends.rx.send(want(1))
        ends.rx.send(Bye("held", [1]))
        fd = ends.rx.detach()
        assert fd >= 0
        assert ends.rx.detach() == -1
        ends.rx.close()
        ends.rx.send(want(2))
        assert await ends.sender.next("received") == want(1)
        assert await ends.sender.next("received") == Bye("held", [1])
        await asyncio.sleep(0.02)
        assert ends.sender.queue("ended").empty()
        os.close(fd)
        await ends.sender.next("ended")
        assert ends.sender.words == [want(1), Bye("held", [1])]

    async def test_bye_of_a_peer_that_keeps_its_end(self, ends: Pair) -> None:
        """It listens no more, and that its end stays open is no proof: the handler may watch."""
        ends.rx.send(Bye("no more"))
        fd = ends.rx.detach()
        watched: list[int] = []
        note = ends.sender.ended

        def ended(channel: Channel, error: Exception | None) -> None:
            watched.append(channel.detach())
            note(channel, error)

        ends.sender.ended = ended  # type: ignore[method-assign]
        error = await ends.sender.next("ended")
        assert isinstance(error, ProtocolError)
        assert "does not listen" in str(error)
        assert ends.sender.words == [Bye("no more")]
        loop = asyncio.get_running_loop()
        end = asyncio.Event()
        loop.add_reader(watched[0], end.set)
        await asyncio.sleep(0.02)
        assert not end.is_set()
        os.close(fd)
        await end.wait()
        assert os.read(watched[0], 1) == b""
        loop.remove_reader(watched[0])
        os.close(watched[0])

    async def test_bye_and_end_together_are_an_orderly_end(self, wire: Wire) -> None:
        wire.sock.send(frame(encode(Bye("closed"))))
        assert await wire.handler.next("received") == Bye("closed")
        wire.line.send(Done(1))  # nobody would read it
        wire.sock.close()
        assert await wire.handler.next("ended") is None

    async def test_detach_inside_ended_after_end_of_file(self, wire: Wire) -> None:
        fds: asyncio.Queue[int] = asyncio.Queue()
        wire.handler.ended = lambda channel, error: fds.put_nowait(channel.detach())  # type: ignore[method-assign]
        wire.sock.close()
        fd = await fds.get()
        assert os.read(fd, 1) == b""
        os.close(fd)

    async def test_writing_error_that_is_no_end(self, wire: Wire) -> None:
        class Failing:
            def send(self, data: bytes) -> int:
                raise OSError(105, "No buffer space available")

        wire.line._outbox._sock = Failing()  # type: ignore[assignment]
        wire.line.send(Done(1))
        assert wire.handler.queue("ended").empty()  # not from inside send
        error = await wire.handler.next("ended")
        assert isinstance(error, OSError)

    async def test_end_while_waiting_to_write(self, ends: Pair) -> None:
        """The socket is full when the peer goes: the writer's end is told once."""
        for _ in range(8):
            ends.tx.send(Offer(1, 1, [1], [], [], bytes(1 << 20)))
        ends.rx.close()
        await ends.sender.next("ended")
        assert ends.tx.queued == 0
        assert ends.sender.queue("ended").empty()
