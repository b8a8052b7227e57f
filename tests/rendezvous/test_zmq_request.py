"""Questions over ZMQ to somebody who speaks another wire."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import zmq
import zmq.asyncio

from omni_async.cli.free_ports import FreePorts
from omni_async.errors import ClosedError, UsageError
from omni_async.rendezvous import zmq_asker
from omni_async.rendezvous.zmq_request import ZmqRequests

Answer = Callable[[bytes], Awaitable[bytes]]


@pytest.fixture
def port() -> Iterator[int]:
    with FreePorts() as kept:
        yield kept.of("server")


@contextlib.asynccontextmanager
async def server(port: int, answer: Answer) -> AsyncIterator[list[bytes]]:
    """A ROUTER that answers as it likes; what it has heard."""
    context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(f"tcp://127.0.0.1:{port}")
    heard: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def handle(identity: bytes, body: bytes) -> None:
        await router.send_multipart([identity, b"", await answer(body)])

    async def serve() -> None:
        while True:
            identity, empty, body = await router.recv_multipart()
            assert empty == b""
            heard.append(body)
            task = asyncio.create_task(handle(identity, body))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    serving = asyncio.create_task(serve())
    try:
        yield heard
    finally:
        serving.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.wait([serving, *tasks])
        router.close()
        context.term()


@contextlib.contextmanager
def requests(port: int, sockets: int = 2, host: str = "127.0.0.1") -> Iterator[ZmqRequests]:
    made = ZmqRequests(f"tcp://{host}:{port}", sockets)
    try:
        yield made
    finally:
        made.close()


async def upper(body: bytes) -> bytes:
    return body.upper()


async def test_one_after_another_and_many_at_once(port: int) -> None:
    async with server(port, upper) as heard:
        with requests(port) as asking:
            for i in range(20):
                assert await asking.ask(b"a%d" % i) == b"A%d" % i
            answers = await asyncio.gather(*(asking.ask(b"b%d" % i) for i in range(200)))
            assert answers == [b"B%d" % i for i in range(200)]
            assert await asking.ask(b"") == b""
        assert len(heard) == 221


async def test_no_more_are_under_way_than_there_are_sockets(port: int) -> None:
    gate = asyncio.Event()
    under_way = highest = 0

    async def slow(body: bytes) -> bytes:
        nonlocal under_way, highest
        under_way += 1
        highest = max(highest, under_way)
        await gate.wait()
        await asyncio.sleep(0)
        under_way -= 1
        return body

    async with server(port, slow) as heard:
        with requests(port, sockets=3) as asking:
            asked = [asyncio.ensure_future(asking.ask(b"%d" % i)) for i in range(12)]
            while len(heard) < 3:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
            gate.set()
            assert await asyncio.gather(*asked) == [b"%d" % i for i in range(12)]
    assert highest == 3


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_late_answer_finds_nobody(port: int, how: str) -> None:
    """Where a REQ would be unusable or hand the late answer to the next question."""
    gate = asyncio.Event()

    async def slow_first(body: bytes) -> bytes:
        if body == b"first":
            await gate.wait()
        return body + b"!"

    async with server(port, slow_first) as heard:
        with requests(port, sockets=1) as asking:
            first = asyncio.ensure_future(asking.ask(b"first"))
            while not heard:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
            if how == "cancelled":
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
            else:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(first, 0.01)
            second = asyncio.ensure_future(asking.ask(b"second"))
            gate.set()
            assert await second == b"second!"
            assert await asking.ask(b"third") == b"third!"


async def test_one_who_waits_for_a_turn_is_cancelled(port: int) -> None:
    gate = asyncio.Event()

    async def slow(body: bytes) -> bytes:
        await gate.wait()
        return body

    async with server(port, slow) as heard:
        with requests(port, sockets=1) as asking:
            first = asyncio.ensure_future(asking.ask(b"first"))
            waiting = [asyncio.ensure_future(asking.ask(b"%d" % i)) for i in range(5)]
            while not heard:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
            for task in waiting[:4]:
                task.cancel()
            gate.set()
            assert await first == b"first"
            assert await waiting[4] == b"4"
        assert heard == [b"first", b"4"]


async def test_nobody_is_there(port: int) -> None:
    with requests(port) as asking:
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError, match="nobody can be reached"):
                await asking.ask(b"a")
        async with server(port, upper):
            assert await asking.ask(b"a") == b"A"


async def test_the_connection_ends_before_the_answer(port: int) -> None:
    async def never(body: bytes) -> bytes:
        if body == b"idle":
            return body
        await asyncio.Event().wait()
        return b""

    with requests(port) as asking:
        async with server(port, never) as heard:
            assert await asking.ask(b"idle") == b"idle"
            pending = asyncio.ensure_future(asking.ask(b"a"))
            while len(heard) < 2:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
        with pytest.raises(ConnectionResetError, match="without an answer"):
            await pending
        async with server(port, upper):
            assert await asking.ask(b"b") == b"B"


async def test_an_answer_that_came_before_the_end_is_heard(port: int) -> None:
    for _ in range(20):
        with requests(port) as asking:
            context = zmq.asyncio.Context()
            router = context.socket(zmq.ROUTER)
            router.bind(f"tcp://127.0.0.1:{port}")
            pending = asyncio.ensure_future(asking.ask(b"a"))
            identity, _, _ = await router.recv_multipart()
            await router.send_multipart([identity, b"", b"last words"])
            router.close(linger=1000)
            context.term()
            assert await pending == b"last words"


async def test_answers_of_another_form(port: int) -> None:
    context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(f"tcp://127.0.0.1:{port}")
    with requests(port) as asking:
        forms: list[list[bytes]] = [[b"a"], [b"a", b"b"], [b"", b"a", b"b"], [b""]]
        for form in forms:
            pending = asyncio.ensure_future(asking.ask(b"q"))
            identity, _, _ = await router.recv_multipart()
            await router.send_multipart([identity, *form])
            with pytest.raises(ConnectionError, match="answered in"):
                await pending
        pending = asyncio.ensure_future(asking.ask(b"q"))
        identity, _, _ = await router.recv_multipart()
        await router.send_multipart([identity, b"", b"x" * (zmq_asker.ANSWER_LIMIT + 1)])
        with pytest.raises(ConnectionResetError):
            await pending
        # An answer that nobody asked for spoils its socket.
        pending = asyncio.ensure_future(asking.ask(b"q"))
        identity, _, _ = await router.recv_multipart()
        await router.send_multipart([identity, b"", b"one"])
        assert await pending == b"one"
        await router.send_multipart([identity, b"", b"too many"])
        await asyncio.sleep(0.05)
        pending = asyncio.ensure_future(asking.ask(b"r"))
        other, _, body = await router.recv_multipart()
        assert (other != identity, body) == (True, b"r")
        await router.send_multipart([other, b"", b"two"])
        assert await pending == b"two"
    router.close()
    context.term()


async def test_something_else_listens_there(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_asker, "CONNECT_SECONDS", 0.3)

    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        mute.bind(("127.0.0.1", port))
        mute.listen()
        with requests(port) as asking:
            with pytest.raises(ConnectionError):
                await asking.ask(b"a")


async def test_names(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(port, upper):
        with requests(port, host="localhost") as asking:
            for _ in range(3):
                assert await asking.ask(b"a") == b"A"
    with requests(port, host="nobody.invalid") as asking:
        with pytest.raises(OSError, match=r"nobody\.invalid"):
            await asking.ask(b"a")
    two = [(socket.AF_INET, 1, 6, "", (host, port)) for host in ("127.0.0.9", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: two)
    async with server(port, upper):
        with requests(port, host="two.example") as asking:
            with pytest.raises(ConnectionRefusedError):
                await asking.ask(b"a")
            assert await asking.ask(b"a") == b"A"


@pytest.mark.parametrize("address", ["127.0.0.1:5", "tcp://:5", "tcp://a", "unix:@x", "tcp://a:0"])
async def test_no_address(address: str) -> None:
    with pytest.raises(UsageError):
        ZmqRequests(address, 1)


async def test_closing(port: int) -> None:
    async def never(body: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with server(port, never) as heard:
        asking = ZmqRequests(f"tcp://127.0.0.1:{port}", 1)
        pending = [asyncio.ensure_future(asking.ask(b"a")) for _ in range(3)]
        while not heard:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.001)
        asking.close()
        asking.close()
        for question in pending:
            with pytest.raises(ClosedError):
                await question
        with pytest.raises(ClosedError):
            await asking.ask(b"b")
        assert heard == [b"a"]
