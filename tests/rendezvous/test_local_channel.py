"""The local channel keeps the promises of the Unix one, inside one process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
from collections.abc import AsyncIterator
from multiprocessing import get_context

import pytest

from omni_async.abc import Channel
from omni_async.errors import ProtocolError, UsageError
from omni_async.model import Endpoint
from omni_async.rendezvous import local_channel
from omni_async.rendezvous.framing import close_fds
from omni_async.rendezvous.local_channel import LocalChannels, LocalListener
from omni_async.rendezvous.messages import Bye, Done, Message
from tests.rendezvous.lines import Pair, Recorder, hello, pair, regions, want
from tests.rendezvous.test_unix_outbox import same_file


@pytest.fixture
async def ends(namespace: str) -> AsyncIterator[Pair]:
    async with pair(LocalChannels(), namespace) as both:
        yield both


class TestSending:
    async def test_order_and_identity(self, ends: Pair) -> None:
        words = [want(op) for op in range(1000)]
        for word in words:
            ends.rx.send(word)
            ends.tx.send(Done(word.op))
        assert ends.sender.words == []  # never from inside send
        for word in words:
            assert await ends.sender.next("received") is word
            assert await ends.receiver.next("received") == Done(word.op)
        ends.rx.flush()
        assert ends.rx.queued == 0

    async def test_many_at_once(self, ends: Pair) -> None:
        ends.tx.send_many([Done(1), Done(2)])
        ends.rx.poll()  # nothing to do: what was sent is here in the next turn
        assert await ends.receiver.next("received") == Done(1)
        assert await ends.receiver.next("received") == Done(2)

    async def test_answers_do_not_re_enter(self, namespace: str) -> None:
        ends = Pair(LocalChannels(), namespace)
        ends.sender.answer = [Done(1), Done(2)]  # Recorder refuses a nested call
        await ends.open()
        ends.rx.send(want(1))
        assert await ends.receiver.next("received") == Done(1)
        assert await ends.receiver.next("received") == Done(2)
        ends.close()

    async def test_descriptors_are_duplicated(self, ends: Pair) -> None:
        r, w = os.pipe()
        ends.tx.send(regions(2), [r, w])
        await ends.receiver.next("received")
        got = ends.receiver.fds[0]
        assert r not in got
        assert same_file(got[0], r)
        assert same_file(got[1], w)
        close_fds([r, w, *got])
        with pytest.raises(UsageError, match="names 1 descriptors, 0 were given"):
            ends.tx.send(regions(1))
        with pytest.raises(UsageError, match="names 0 descriptors, 1 were given"):
            ends.tx.send(Done(1), [0])

    async def test_many_words_leave_turns_to_others(self, ends: Pair) -> None:
        for op in range(2000):
            ends.rx.send(want(op))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < len(ends.sender.words) < 2000
        for _ in range(2000):
            await ends.sender.next("received")

    async def test_failing_handler_does_not_stop_the_words_behind(self, namespace: str) -> None:
        class Fussy(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                super().received(channel, message, fds)
                if message == want(2):
                    raise ZeroDivisionError("a mistake of the handler")

        seen: list[BaseException | None] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(context.get("exception")))
        ends = Pair(LocalChannels(), namespace)
        ends.sender = Fussy()
        await ends.open()
        for op in range(1, 6):
            ends.rx.send(want(op))
        for op in range(1, 6):
            assert await ends.sender.next("received") == want(op)
        assert [type(error) for error in seen] == [ZeroDivisionError]
        ends.close()


class TestEnds:
    async def test_close_delivers_what_was_sent(self, ends: Pair) -> None:
        for op in range(600):
            ends.tx.send(Done(op))
        ends.tx.close()
        ends.tx.close()
        ends.tx.send(Done(1))
        assert await ends.receiver.next("ended") is None
        assert ends.receiver.words == [Done(op) for op in range(600)]
        assert ends.sender.queue("ended").empty()

    async def test_descriptors_nobody_takes_are_closed(self, ends: Pair) -> None:
        r, w = os.pipe()
        ends.tx.send(regions(1), [r])
        ends.rx.close()
        ends.tx.send(regions(1), [r])
        os.close(r)
        with pytest.raises(BrokenPipeError):
            os.write(w, b"x")
        os.close(w)

    async def test_close_from_inside_received(self, namespace: str) -> None:
        class Leaver(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                super().received(channel, message, fds)
                channel.close()

        ends = Pair(LocalChannels(), namespace)
        ends.sender = Leaver()
        await ends.open()
        r, w = os.pipe()
        ends.rx.send(want(1))
        ends.rx.send(regions(1), [r])
        assert await ends.receiver.next("ended") is None
        assert ends.sender.words == [want(1)]
        ends.close()
        close_fds([r, w])

    async def test_detach_keeps_a_descriptor_that_proves_the_end(self, ends: Pair) -> None:
        watched: list[int] = []
        note = ends.sender.ended

        def ended(channel: Channel, error: Exception | None) -> None:
            watched.append(channel.detach())
            note(channel, error)

        ends.sender.ended = ended  # type: ignore[method-assign]
        ends.rx.send(Bye("held", [1]))
        fd = ends.rx.detach()
        assert fd >= 0
        assert ends.rx.detach() == -1
        ends.tx.send(Done(1))
        error = await ends.sender.next("ended")
        assert isinstance(error, ProtocolError)
        assert "does not listen" in str(error)
        assert ends.sender.words == [Bye("held", [1])]
        loop = asyncio.get_running_loop()
        end = asyncio.Event()
        loop.add_reader(watched[0], end.set)
        await asyncio.sleep(0.02)
        assert not end.is_set()
        os.close(fd)
        await end.wait()
        loop.remove_reader(watched[0])
        assert os.read(watched[0], 1) == b""
        os.close(watched[0])

    async def test_broken_rule_on_a_line_that_is_kept(self, namespace: str) -> None:
        """Who detaches inside ``ended`` keeps its end open, and the other side knows."""
        kept: list[int] = []

        class Strict(Recorder):
            def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
                raise ProtocolError("that word makes no sense here")

            def ended(self, channel: Channel, error: Exception | None) -> None:
                kept.append(channel.detach())
                super().ended(channel, error)

        ends = Pair(LocalChannels(), namespace)
        ends.sender = Strict()
        await ends.open()
        ends.rx.send(want(1))
        error = await ends.sender.next("ended")
        assert "makes no sense" in str(error)
        assert "does not listen" in str(await ends.receiver.next("ended"))
        assert kept[0] >= 0
        os.close(kept[0])
        ends.close()


class TestMeeting:
    def test_addresses_differ_as_endpoints_do(self) -> None:
        channels = LocalChannels()
        one = channels.address_of(Endpoint("a/b", "c", 0, 0))
        assert one != channels.address_of(Endpoint("a", "b/c", 0, 0))
        assert one.startswith("local:")

    async def test_receiver_first(self, namespace: str) -> None:
        channels = LocalChannels()
        endpoint = Endpoint(namespace, "0", 0, 0)
        handlers = [Recorder() for _ in range(3)]
        dialers = [
            channels.dial(channels.address_of(endpoint), hello("receiver", namespace), handler)
            for handler in handlers
        ]
        assert await dialers[0].attempt() is None
        assert isinstance(dialers[0].refused(), ConnectionRefusedError)
        dialers[2].close()
        listener = await channels.listen(endpoint, hello("sender", namespace), Recorder())
        for handler, dialer in zip(handlers[:2], dialers[:2], strict=True):
            assert await handler.next("opened") is dialer.channel
            assert dialer.refused() is None
        assert handlers[2].queue("opened").empty()
        for dialer in dialers:
            dialer.close()
            dialer.close()
        listener.close()
        listener.close()
        assert local_channel._meeting.listeners.keys() & {listener.address} == set()
        assert local_channel._meeting.waiting.keys() & {listener.address} == set()

    async def test_nobody_waits_any_more(self, namespace: str) -> None:
        channels = LocalChannels()
        address = channels.address_of(Endpoint(namespace, "0", 0, 0))
        dialers = [
            channels.dial(address, hello("receiver", namespace), Recorder()) for _ in range(2)
        ]
        for dialer in dialers:
            dialer.close()
        assert address not in local_channel._meeting.waiting

    async def test_attempt(self, namespace: str) -> None:
        async with pair(LocalChannels(), namespace) as ends:
            assert await ends.dialer.attempt() is ends.rx
            ends.tx.close()
            await ends.receiver.next("ended")
            assert ends.dialer.channel is None
            assert isinstance(ends.dialer.refused(), ConnectionResetError)
            first, second = await asyncio.gather(ends.dialer.attempt(), ends.dialer.attempt())
            assert first is second is ends.dialer.channel is not None

    async def test_attempt_cancelled(self, namespace: str) -> None:
        async with pair(LocalChannels(), namespace) as ends:
            ends.rx.close()
            task = asyncio.ensure_future(ends.dialer.attempt())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert await ends.dialer.attempt() is not None

    async def test_comes_back_after_an_end(self, namespace: str) -> None:
        async with pair(LocalChannels(), namespace) as ends:
            for _ in range(5):
                ends.sender.channels[-1].close()
                assert await ends.receiver.next("ended") is None
                await ends.receiver.next("opened")
                await ends.sender.next("opened")

    async def test_second_listener(self, namespace: str) -> None:
        async with pair(LocalChannels(), namespace) as ends:
            with pytest.raises(UsageError, match=f"process {os.getpid()}"):
                await ends.channels.listen(ends.endpoint, hello("sender", namespace), Recorder())
            ends.listener.close()
            (
                await ends.channels.listen(ends.endpoint, hello("sender", namespace), Recorder())
            ).close()

    async def test_disagreement(self, namespace: str) -> None:
        async with pair(LocalChannels(), namespace) as ends:
            handler = Recorder()
            mine = hello("receiver", namespace, wire=2)
            dialer = ends.channels.dial(ends.listener.address, mine, handler)
            assert await dialer.attempt() is None
            assert isinstance(dialer.refused(), ProtocolError)
            assert "speaks 2" in str(dialer.refused())
            assert isinstance(ends.listener, LocalListener)
            assert ends.listener.dropped >= 1
            assert "speaks 2" in str(ends.listener.last_drop)
            dialer.close()
            assert await dialer.attempt() is None


class Neighbour(threading.Thread):
    """A sender on an event loop of its own thread."""

    def __init__(self, namespace: str) -> None:
        super().__init__(daemon=True)
        self.namespace = namespace
        self.handler: Recorder
        self.ready = threading.Event()
        self.over: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self.orderly = True

    def run(self) -> None:
        asyncio.run(self.serve())

    async def serve(self) -> None:
        self.handler = Recorder()
        self.handler.answer = [Done(1)]
        self.loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        listener = await LocalChannels().listen(
            Endpoint(self.namespace, "0", 0, 0), hello("sender", self.namespace), self.handler
        )
        self.ready.set()
        await self.over.wait()
        if self.orderly:
            listener.close()
            for channel in self.handler.channels:
                channel.close()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.over.set)
        self.join()


class TestTwoLoops:
    async def test_words_cross(self, namespace: str) -> None:
        handler = Recorder()
        channels = LocalChannels()
        address = channels.address_of(Endpoint(namespace, "0", 0, 0))
        dialer = channels.dial(address, hello("receiver", namespace), handler)
        neighbour = Neighbour(namespace)
        neighbour.start()
        channel = await handler.next("opened")
        for op in range(2000):
            channel.send(want(op))
        for _ in range(2000):
            assert await handler.next("received") == Done(1)
        assert neighbour.handler.words == [want(op) for op in range(2000)]
        await asyncio.to_thread(neighbour.end)
        assert await handler.next("ended") is None
        dialer.close()

    async def test_loop_that_was_closed_with_the_line_open(self, namespace: str) -> None:
        neighbour = Neighbour(namespace)
        neighbour.orderly = False
        neighbour.start()
        await asyncio.to_thread(neighbour.ready.wait)
        handler = Recorder()
        channels = LocalChannels()
        endpoint = Endpoint(namespace, "0", 0, 0)
        dialer = channels.dial(channels.address_of(endpoint), hello("receiver", namespace), handler)
        channel = await handler.next("opened")
        await asyncio.to_thread(neighbour.end)
        r, w = os.pipe()
        channel.send(regions(1), [r])
        error = await handler.next("ended")
        assert isinstance(error, ProtocolError)
        assert "loop was closed" in str(error)
        dialer.close()
        close_fds([r, w])
        # Its name is free for a successor.
        (await channels.listen(endpoint, hello("sender", namespace), Recorder())).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # who forgot to close left a socket
            neighbour.handler.channels.clear()
            neighbour.handler.events.clear()
            neighbour.handler._queues.clear()
            del neighbour, channel, dialer
            handler.channels.clear()
            handler.events.clear()
            gc.collect()

    async def test_waiting_dialer_whose_loop_was_closed(self, namespace: str) -> None:
        channels = LocalChannels()
        endpoint = Endpoint(namespace, "0", 0, 0)

        async def wait_and_forget() -> None:
            channels.dial(channels.address_of(endpoint), hello("receiver", namespace), Recorder())

        await asyncio.to_thread(asyncio.run, wait_and_forget())
        (await channels.listen(endpoint, hello("sender", namespace), Recorder())).close()


def _is_forgotten(address: str, answer: object) -> None:
    os._exit(0 if address not in local_channel._meeting.listeners else 1)


async def test_forked_child_knows_nobody(namespace: str) -> None:
    async with pair(LocalChannels(), namespace) as ends:
        assert ends.listener.address in local_channel._meeting.listeners
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of earlier tests
            child = get_context("fork").Process(
                target=_is_forgotten, args=(ends.listener.address, None)
            )
            child.start()
        child.join()
        assert child.exitcode == 0
        with contextlib.suppress(ValueError):
            child.close()
        ends.rx.send(want(1))
        assert await ends.sender.next("received") == want(1)
