"""Who is let in at a side channel, who is answered, and who is dropped."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from omni_async.abc import Stranger
from omni_async.errors import ProtocolError
from omni_async.rendezvous.handshake import Disagreement
from omni_async.rendezvous.messages import WIRE, Bye, Done, Hello
from tests.rendezvous.lines import Recorder, hello, want
from tests.rendezvous.zmq_wire import (
    HOST,
    Bare,
    Listening,
    listening,
    listens,
    local,
    sealed,
    until,
    word_bytes,
    words_of,
)

__all__ = ["listening"]


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class TestMismatch:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"wire": 2}, "the sender speaks 1, the receiver speaks 2"),
            ({"namespace": "other"}, "namespace differs"),
            ({"backend": "NixlConnector"}, "backend differs"),
            ({"verb": "read"}, "verb differs"),
            ({"role": "sender"}, "both sides are a sender"),
        ],
    )
    async def test_both_sides_learn_why(
        self, listening: Listening, changes: dict[str, Any], text: str
    ) -> None:
        handler = Recorder()
        mine = hello(**{"role": "receiver", "namespace": listening.namespace, **changes})
        dialer = local().dial(listening.address, mine, handler)
        assert await dialer.attempt() is None
        error = dialer.refused()
        assert isinstance(error, Disagreement)
        assert text in str(error)
        assert listening.address in str(error)
        assert listening.listener.dropped == 1
        assert isinstance(listening.listener.last_drop, ProtocolError)
        assert text in str(listening.listener.last_drop)
        assert HOST in str(listening.listener.last_drop)
        assert handler.events == listening.handler.events == []
        dialer.close()
        await listening.works()

    async def test_a_refusal_is_told_once_it_is_repeated(self, listening: Listening) -> None:
        refusals: asyncio.Queue[Exception] = asyncio.Queue()
        dialer = local().dial(listening.address, hello("receiver", "other"), Recorder())
        dialer.on_refused = refusals.put_nowait
        assert await dialer.attempt() is None
        assert refusals.empty()
        error = await asyncio.wait_for(refusals.get(), 5)
        assert "namespace differs" in str(error)
        dialer.close()

    async def test_sender_of_another_wire(self, namespace: str) -> None:
        """The other side need not even check: the dialer does."""
        server = Bare(f"tcp://{HOST}:*", zmq.ROUTER)
        dialer = local().dial(server.address, hello("receiver", namespace), Recorder())
        attempt = asyncio.ensure_future(dialer.attempt())
        peer, body = await server.next()
        assert isinstance(words_of(body)[0], Hello)
        server.say(peer, sealed(msgspec.msgpack.encode([1, 2, "of", "another", "shape"])))
        assert await attempt is None
        assert "the receiver speaks 1, the sender speaks 2" in str(dialer.refused())
        dialer.close()
        server.close()

    @pytest.mark.parametrize(
        ("frames", "kind"),
        [
            ((b"\xc1",), ProtocolError),
            ((b"\x00\x00\x00\x00",), ProtocolError),
            ((word_bytes(want(1)),), ProtocolError),
            ((bytes(100_000),), ProtocolError),
            ((b"", b"answer"), ProtocolError),
            ((word_bytes(Bye("not today")),), Disagreement),
            ((b"",), ConnectionResetError),
        ],
    )
    async def test_sender_that_answers_otherwise(
        self, namespace: str, frames: tuple[bytes, ...], kind: type[Exception]
    ) -> None:
        server = Bare(f"tcp://{HOST}:*", zmq.ROUTER)
        handler = Recorder()
        dialer = local().dial(server.address, hello("receiver", namespace), handler)
        attempt = asyncio.ensure_future(dialer.attempt())
        peer, _ = await server.next()
        server.say(peer, *frames)
        assert await attempt is None
        assert type(dialer.refused()) is kind
        assert server.address in str(dialer.refused())
        assert handler.events == []
        dialer.close()
        server.close()


NONSENSE: dict[str, tuple[bytes, ...]] = {
    "no word": (b"\xc1",),
    "random": (os.urandom(300),),
    "a length of 1 GiB": (struct.pack("<I", 1 << 30) + b"abc",),
    "cut off": (word_bytes(hello("receiver", "x"))[:-3],),
    "another word": (word_bytes(want(1)),),
    "a map": (sealed(msgspec.msgpack.encode({"op": 1})),),
    "a Hello of nothing": (sealed(msgspec.msgpack.encode([1])),),
    "a Hello of wrong types": (sealed(msgspec.msgpack.encode([1, "a", 5, None])),),
    "nested without end": (sealed(b"\x91" * 5000),),
    "longer than a Hello": (bytes(70_000),),
    "two parts": (b"a", b"b"),
    "nine parts": tuple([b"x"] * 9),
    "a request of two parts": (b"", b"a", b"b"),
    "only empty parts": (b"", b"", b"", b""),
}


class TestUnwelcome:
    @pytest.mark.parametrize("frames", NONSENSE.values(), ids=NONSENSE)
    async def test_who_speaks_nonsense(
        self, listening: Listening, frames: tuple[bytes, ...]
    ) -> None:
        bare = listening.bare()
        bare.say(*frames)
        await listening.until_dropped(1)
        assert isinstance(listening.listener.last_drop, ProtocolError)
        await listening.works()
        assert listening.listener.dropped == 1
        assert bare.heard.empty()  # there is nothing to be said to that

    async def test_an_empty_message_is_nothing(self, listening: Listening) -> None:
        bare = listening.bare()
        bare.say(b"")
        await bare.hello(listening.namespace)
        assert listening.listener.dropped == 0

    async def test_a_pickle_is_bytes(self, listening: Listening, tmp_path: Path) -> None:
        trap = pickle.dumps(Trap(tmp_path / "touched"))
        bare = listening.bare()
        for frames in ((trap,), (b"", trap), (sealed(trap),), (trap, trap)):
            bare.say(*frames)
        await listening.until_dropped(4)
        await bare.hello(listening.namespace)
        line = await listening.handler.next("opened")
        bare.say(sealed(trap))
        assert isinstance(await listening.handler.next("ended"), ProtocolError)
        assert line.name
        assert list(tmp_path.iterdir()) == []

    async def test_longer_than_any_message(self, namespace: str) -> None:
        """libzmq ends the connection as soon as it has read the length."""
        async with listens(local(max_message=100_000), namespace) as house:
            bare = house.bare(RECONNECT_IVL=-1)
            bare.say(bytes(1_000_000))
            await house.until_dropped(1)
            assert "without a word" in str(house.listener.last_drop)
            await house.works()

    async def test_longer_than_any_message_on_a_line(self, namespace: str) -> None:
        async with listens(local(max_message=100_000), namespace) as house:
            bare = house.bare(RECONNECT_IVL=-1)
            await bare.hello(namespace)
            await house.handler.next("opened")
            bare.word(want(1))
            bare.say(bytes(1_000_000))
            assert await house.handler.next("ended") is None
            assert house.handler.words == [want(1)]
            await house.works()

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(100),
            os.urandom(1000),
            b"\xff" + bytes(8) + b"\x7f\x03\x00NULL",
            b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
        ],
        ids=["nothing", "http", "zeros", "random", "greeting", "half a greeting"],
    )
    async def test_who_does_not_speak_zeromq(self, listening: Listening, data: bytes) -> None:
        with socket.create_connection((HOST, listening.listener.port)) as sock:
            sock.sendall(data)
        await listening.until_dropped(1)
        await listening.works()

    async def test_a_thousand_who_leave_at_once(self, listening: Listening) -> None:
        for count in range(1, 1001):
            with socket.create_connection((HOST, listening.listener.port)) as sock:
                if count % 2:
                    sock.send(b"\xff")
            if not count % 100:
                await listening.until_dropped(count)
        await listening.works()
        assert listening.listener.dropped == 1000
        assert listening.listener._connections == {}

    async def test_who_leaves_after_a_good_hello(self, listening: Listening) -> None:
        for _ in range(20):
            bare = listening.bare()
            bare.word(hello("receiver", listening.namespace))
            await asyncio.sleep(0.002)
            bare.close(0.0)
        await until(lambda: not listening.listener._connections)
        await listening.works()

    async def test_a_routing_id_in_use_is_of_no_use_to_another(self, listening: Listening) -> None:
        first = listening.bare(routing_id=b"\1same")
        await first.hello(listening.namespace)
        line = await listening.handler.next("opened")
        second = listening.bare(routing_id=b"\1same")
        second.word(want(666))
        await asyncio.sleep(0.1)
        first.word(want(1))
        assert await listening.handler.next("received") == want(1)
        line.send(Done(1))
        assert await first.words() == [Done(1)]
        assert second.heard.empty()
        assert len(listening.handler.words) == 1


class TestStrangers:
    async def ask(self, house: Listening, *frames: bytes, kind: int = zmq.REQ) -> Bare:
        bare = house.bare(kind)
        bare.say(*frames)
        return bare

    async def test_request_and_answer(self, listening: Listening) -> None:
        asked: asyncio.Queue[Stranger] = asyncio.Queue()
        listening.listener.on_stranger = asked.put_nowait
        client = await self.ask(listening, b"what?")
        stranger = await asked.get()
        assert stranger.body == b"what?"
        assert stranger.name == f"tcp://{HOST}"
        stranger.answer(b"that")
        stranger.answer(b"once is enough")
        assert await client.next() == [b"that"]
        client.say(b"and now?")
        (await asked.get()).answer(b"")
        assert await client.next() == [b""]
        assert listening.listener.dropped == 0
        await listening.works()

    async def test_with_more_in_front_of_the_empty_frame(self, listening: Listening) -> None:
        asked: asyncio.Queue[Stranger] = asyncio.Queue()
        listening.listener.on_stranger = asked.put_nowait
        client = await self.ask(listening, b"id", b"", b"what?", kind=zmq.DEALER)
        (await asked.get()).answer(b"that")
        assert await client.next() == [b"id", b"", b"that"]

    async def test_who_asks_many_things_at_once(self, listening: Listening) -> None:
        listening.listener.on_stranger = lambda stranger: stranger.answer(stranger.body * 2)
        client = listening.bare()
        for number in range(500):
            client.say(b"", b"%d" % number)
        for number in range(500):
            assert await client.next() == [b"", b"%d" % number * 2]

    async def test_nobody_answers_strangers_here(self, listening: Listening) -> None:
        await self.ask(listening, b"what?")
        await listening.until_dropped(1)
        assert "another wire" in str(listening.listener.last_drop)
        await listening.works()

    async def test_answer_to_who_has_left(self, listening: Listening) -> None:
        asked: asyncio.Queue[Stranger] = asyncio.Queue()
        listening.listener.on_stranger = asked.put_nowait
        client = await self.ask(listening, b"what?")
        stranger = await asked.get()
        client.close(0.0)
        await asyncio.sleep(0.05)
        stranger.answer(b"that")
        await listening.works()

    async def test_answer_after_the_listener_was_closed(self, listening: Listening) -> None:
        asked: asyncio.Queue[Stranger] = asyncio.Queue()
        listening.listener.on_stranger = asked.put_nowait
        await self.ask(listening, b"what?")
        stranger = await asked.get()
        listening.listener.close()
        stranger.answer(b"that")

    async def test_who_takes_no_answers(self, listening: Listening) -> None:
        """Answers that nobody takes are bounded, and hold up nobody."""
        listening.listener.on_stranger = lambda stranger: stranger.answer(bytes(10_000))
        client = listening.bare(RCVHWM=1, SNDHWM=0)
        client.ready.busy = True
        for _ in range(6_000):
            client.say(b"", b"more")
        await asyncio.sleep(0.5)
        await listening.works()

    async def test_failing_answerer_stops_nothing(self, listening: Listening) -> None:
        def fail(stranger: Stranger) -> None:
            raise ZeroDivisionError("a mistake of who answers")

        seen: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.put_nowait(context.get("exception")))
        listening.listener.on_stranger = fail
        await self.ask(listening, b"what?")
        assert isinstance(await seen.get(), ZeroDivisionError)
        await listening.works()


async def test_wire_versions_are_checked_with_the_first_word(listening: Listening) -> None:
    bare = listening.bare()
    bare.say(sealed(msgspec.msgpack.encode([1, WIRE + 1, {"of": "another shape"}])))
    (bye,) = await bare.words()
    assert isinstance(bye, Bye)
    assert f"the receiver speaks {WIRE + 1}" in bye.reason
    assert await bare.words() == []
