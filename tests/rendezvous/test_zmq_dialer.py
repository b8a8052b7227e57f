"""The dialer between hosts: waits for who is not there yet, comes back after an end, costs little."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq

from omni_async.errors import ProtocolError, UsageError
from omni_async.model import Endpoint
from omni_async.rendezvous import redialer, zmq_context
from omni_async.rendezvous.messages import Bye
from omni_async.rendezvous.zmq_channel import ZmqChannels, ZmqListener
from tests.rendezvous.lines import Pair, Recorder, hello, pair, want
from tests.rendezvous.zmq_wire import HOST, local


def endpoint(namespace: str) -> Endpoint:
    return Endpoint(namespace, "0", 0, 0)


@asynccontextmanager
async def free_port() -> AsyncIterator[int]:
    """A port that is kept by a socket that does not listen."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, 0))
        yield sock.getsockname()[1]


async def test_receiver_first(namespace: str) -> None:
    async with free_port() as port:
        handler, sender = Recorder(), Recorder()
        channels = ZmqChannels(HOST, port, sender_host=HOST, sender_port=port)
        address = channels.address_of(endpoint(namespace))
        assert address is not None
        assert address == f"tcp://{HOST}:{port}"
        dialer = channels.dial(address, hello("receiver", namespace), handler)
        assert dialer.channel is None
        await asyncio.sleep(0.2)
        error = dialer.refused()
        assert isinstance(error, ConnectionRefusedError)
        assert address in str(error)
        listener = await channels.listen(endpoint(namespace), hello("sender", namespace), sender)
        began = time.monotonic()
        channel = await handler.next("opened")
        assert time.monotonic() - began < 0.5
        assert dialer.channel is channel
        assert dialer.refused() is None
        dialer.close()
        listener.close()
        await sender.next("ended")


async def test_not_an_address(namespace: str) -> None:
    for address in ("unix:@x", "tcp://x", "tcp://0.0.0.0:5"):
        with pytest.raises(UsageError):
            local().dial(address, hello("receiver", namespace), Recorder())


async def test_address_of_a_sender_that_was_not_configured(namespace: str) -> None:
    assert ZmqChannels().address_of(endpoint(namespace)) is None
    assert ZmqChannels(sender_port=5).address_of(endpoint(namespace)) is None
    assert ZmqChannels(sender_host="x").address_of(endpoint(namespace)) is None


async def test_comes_back_after_an_end(namespace: str) -> None:
    async with pair(local(), namespace) as ends:
        for _ in range(5):
            ends.sender.channels[-1].close()
            assert await ends.receiver.next("ended") is None
            assert isinstance(ends.dialer.refused(), ConnectionResetError)
            assert ends.dialer.channel is None
            await ends.receiver.next("opened")
            await ends.sender.next("opened")


async def test_comes_back_after_its_own_channel_was_closed(namespace: str) -> None:
    async with pair(local(), namespace) as ends:
        ends.rx.close()
        assert ends.dialer.channel is None
        again = await ends.receiver.next("opened")
        assert ends.dialer.channel is again


async def test_no_socket_left_to_dial_with(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the sockets it is; nothing of the others stays."""
    async with pair(local(), namespace) as ends:
        plain = zmq_context.new_socket
        for failing_at in (1, 2):
            calls = 0

            def failing(kind: int, context: Any = None, at: int = failing_at) -> Any:
                nonlocal calls
                calls += 1
                if calls == at:
                    raise zmq.ZMQError(errno.EMFILE)
                return plain(kind, context)

            monkeypatch.setattr("omni_async.rendezvous.zmq_dealing.new_socket", failing)
            monkeypatch.setattr("omni_async.rendezvous.zmq_monitor.new_socket", failing)
            ends.receiver.channels[-1].close()
            if failing_at == 1:
                assert await ends.dialer.attempt() is None
                error = ends.dialer.refused()
                assert isinstance(error, OSError)
                assert error.errno == errno.EMFILE
            await ends.receiver.next("opened")
            assert calls > failing_at


async def test_back_off_grows_while_lines_do_not_last(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(local(), namespace) as ends:
        began = time.monotonic()
        for _ in range(8):
            ends.receiver.channels[-1].close()
            await ends.receiver.next("opened")
        assert time.monotonic() - began > 0.1
        monkeypatch.setattr(redialer, "_STEADY", 0.0)
        ends.receiver.channels[-1].close()
        assert getattr(ends.dialer, "_delay") <= 0.002  # noqa: B009
        await ends.receiver.next("opened")


async def test_after_a_broken_rule_it_waits_longer_and_remembers(namespace: str) -> None:
    async with pair(local(), namespace) as ends:
        ends.rx._end(ProtocolError("nonsense"))  # type: ignore[attr-defined]
        assert "nonsense" in str(ends.dialer.refused())
        began = time.monotonic()
        await ends.receiver.next("ended")
        bye = await ends.sender.next("received")
        assert "nonsense" in bye.reason
        await ends.receiver.next("opened")
        assert time.monotonic() - began > 0.3


class TestAttempt:
    async def test_nobody_there(self, namespace: str) -> None:
        async with free_port() as port:
            dialer = local().dial(f"tcp://{HOST}:{port}", hello("receiver", namespace), Recorder())
            began = time.monotonic()
            assert await dialer.attempt() is None
            assert time.monotonic() - began < 0.3
            assert isinstance(dialer.refused(), ConnectionRefusedError)
            dialer.close()
            assert await dialer.attempt() is None

    async def test_does_not_wait_for_the_back_off(self, namespace: str) -> None:
        async with free_port() as port:
            channels = ZmqChannels(HOST, port)
            handler, sender = Recorder(), Recorder()
            dialer = channels.dial(f"tcp://{HOST}:{port}", hello("receiver", namespace), handler)
            await asyncio.sleep(0.15)
            listener = await channels.listen(
                endpoint(namespace), hello("sender", namespace), sender
            )
            first, second = await asyncio.gather(dialer.attempt(), dialer.attempt())
            if first is None:  # both joined an attempt that was under way before
                first = second = await dialer.attempt()
            assert first is second is dialer.channel is not None
            assert await dialer.attempt() is first
            dialer.close()
            listener.close()
            await sender.next("ended")

    async def test_cancelled(self, namespace: str) -> None:
        with socket.create_server((HOST, 0)) as server:
            address = f"tcp://{HOST}:{server.getsockname()[1]}"
            dialer = local().dial(address, hello("receiver", namespace), Recorder())
            task = asyncio.ensure_future(dialer.attempt())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            waiting = asyncio.ensure_future(dialer.attempt())
            await asyncio.sleep(0.01)
            dialer.close()
            assert await waiting is None

    async def test_somebody_who_says_nothing(self, namespace: str) -> None:
        channels = local(handshake_timeout=0.1)
        with socket.create_server((HOST, 0)) as server:
            address = f"tcp://{HOST}:{server.getsockname()[1]}"
            dialer = channels.dial(address, hello("receiver", namespace), Recorder())
            assert await dialer.attempt() is None
            assert address in str(dialer.refused())
            dialer.close()

    @pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(64)])
    async def test_somebody_who_leaves(self, namespace: str, answer: bytes) -> None:
        with socket.create_server((HOST, 0)) as server:
            address = f"tcp://{HOST}:{server.getsockname()[1]}"
            server.setblocking(False)

            async def leave() -> None:
                while True:
                    sock, _ = await asyncio.get_running_loop().sock_accept(server)
                    sock.send(answer)
                    sock.close()

            leaving = asyncio.ensure_future(leave())
            dialer = local().dial(address, hello("receiver", namespace), Recorder())
            began = time.monotonic()
            assert await dialer.attempt() is None
            assert time.monotonic() - began < 1
            assert isinstance(dialer.refused(), (OSError, ProtocolError))
            dialer.close()
            leaving.cancel()

    async def test_nobody_answers_from_there(self, namespace: str) -> None:
        """A host that drops what is sent to it."""
        with socket.socket() as full:
            full.bind((HOST, 0))
            full.listen(0)
            waiting = []
            for _ in range(3):  # no more fit into its queue
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
                waiting.append(sock)
            address = f"tcp://{HOST}:{full.getsockname()[1]}"
            channels = local(handshake_timeout=0.2)
            dialer = channels.dial(address, hello("receiver", namespace), Recorder())
            began = time.monotonic()
            assert await dialer.attempt() is None
            assert 0.1 < time.monotonic() - began < 1
            dialer.close()
            for sock in waiting:
                sock.close()


class TestNames:
    async def test_a_name_is_looked_up_beside_the_loop(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = socket.getaddrinfo
        asked = []

        def slow(host: Any, *arguments: Any, **more: Any) -> Any:
            if host != HOST:
                time.sleep(0.2)
                asked.append(host)
                host = HOST
            return plain(host, *arguments, **more)

        monkeypatch.setattr(socket, "getaddrinfo", slow)
        ends = Pair(local(), namespace)
        ends.listener = await ends.channels.listen(
            ends.endpoint, hello("sender", namespace), ends.sender
        )
        port = ends.listener.port
        ends.dialer = ends.channels.dial(
            f"tcp://node.example:{port}", hello("receiver", namespace), ends.receiver
        )
        longest, last = 0.0, time.monotonic()
        while not ends.receiver.channels:
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert longest < 0.15
        assert asked == ["node.example"]
        ends.receiver.channels[-1].close()
        await ends.receiver.next("opened")
        await ends.receiver.next("opened")
        assert asked == ["node.example"]  # the answer is still believed
        ends.close()

    async def test_a_name_that_nobody_knows(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def unknown(host: Any, *arguments: Any, **more: Any) -> Any:
            asked.append(host)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        dialer = local().dial("tcp://nowhere:5", hello("receiver", namespace), Recorder())
        assert await dialer.attempt() is None
        error = dialer.refused()
        assert isinstance(error, OSError)
        assert "'nowhere': Name or service not known" in str(error)
        await asyncio.sleep(0.3)
        assert len(asked) == 1  # once a second is enough
        dialer.close()

    async def test_closed_while_a_name_is_looked_up(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def slow(*arguments: Any, **more: Any) -> Any:
            time.sleep(0.1)
            return []

        monkeypatch.setattr(socket, "getaddrinfo", slow)
        dialer = local().dial("tcp://nowhere:5", hello("receiver", namespace), Recorder())
        waiting = asyncio.ensure_future(dialer.attempt())
        await asyncio.sleep(0.01)
        dialer.close()
        assert await waiting is None
        await asyncio.sleep(0.15)
        assert dialer.channel is None

    async def test_a_name_of_two_places(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = socket.getaddrinfo

        def two(host: Any, *arguments: Any, **more: Any) -> Any:
            if host == "two":
                found = [plain(each, *arguments, **more) for each in ("127.0.0.3", HOST)]
                return found[0] + found[1]
            return plain(host, *arguments, **more)

        monkeypatch.setattr(socket, "getaddrinfo", two)
        ends = Pair(local(), namespace)
        ends.listener = await ends.channels.listen(
            ends.endpoint, hello("sender", namespace), ends.sender
        )
        ends.dialer = ends.channels.dial(
            f"tcp://two:{ends.listener.port}", hello("receiver", namespace), ends.receiver
        )
        await ends.receiver.next("opened")
        ends.close()


async def test_waiting_costs_little(namespace: str) -> None:
    async with free_port() as port:
        dialer = local().dial(f"tcp://{HOST}:{port}", hello("receiver", namespace), Recorder())
        await asyncio.sleep(0.3)
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.monotonic()
        await asyncio.sleep(1.0)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert used / (time.monotonic() - began) < 0.05
        dialer.close()


async def test_close_is_idempotent_and_ends_the_line(namespace: str) -> None:
    async with pair(local(), namespace) as ends:
        ends.dialer.close()
        ends.dialer.close()
        assert ends.dialer.channel is None
        assert await ends.sender.next("ended") is None
        await asyncio.sleep(0.02)
        assert ends.receiver.queue("opened").empty()


async def test_a_connection_that_leads_back_here(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may choose the port that is called for the end that calls."""
    server = socket.create_server((HOST, 0))
    address = f"tcp://{HOST}:{server.getsockname()[1]}"
    mine = hello("receiver", namespace)
    handler = Recorder()
    sender = Recorder()
    server.close()
    # The same Hello on both sides is what such a connection shows.
    listener = await ZmqChannels(HOST, int(address.rpartition(":")[2])).listen(
        endpoint(namespace), mine, sender
    )
    monkeypatch.setattr("omni_async.rendezvous.zmq_listener.disagreement", lambda *_: None)
    dialer = local().dial(address, mine, handler)
    assert await dialer.attempt() is None
    assert isinstance(dialer.refused(), ConnectionRefusedError)
    dialer.close()
    listener.close()
    for channel in sender.channels:
        channel.close()


class TestListener:
    async def test_lines_outlive_it(self, namespace: str) -> None:
        async with pair(local(), namespace) as ends:
            ends.listener.close()
            ends.listener.close()
            ends.rx.send(want(1))
            assert await ends.sender.next("received") == want(1)

    async def test_but_nobody_new_is_let_in(self, namespace: str) -> None:
        async with pair(local(), namespace) as ends:
            ends.listener.close()
            handler = Recorder()
            late = local().dial(ends.listener.address, hello("receiver", namespace), handler)
            refusals: list[Exception] = []
            late.on_refused = refusals.append
            assert await late.attempt() is None
            await asyncio.sleep(0.3)
            assert isinstance(late.refused(), ConnectionResetError)  # somebody may come after it
            assert refusals == []
            late.close()

    async def test_port_is_free_with_its_last_line(self, namespace: str) -> None:
        async with pair(local(), namespace) as ends:
            ends.listener.close()
            ends.tx.close()
            again = await ZmqChannels(HOST, ends.listener.port).listen(
                ends.endpoint, hello("sender", namespace), ends.sender
            )
            assert again.address == ends.listener.address
            await ends.receiver.next("ended")
            await ends.receiver.next("opened")
            again.close()

    async def test_last_words_leave_although_it_closes(self, namespace: str) -> None:
        for _ in range(10):
            async with pair(local(), namespace) as ends:
                ends.tx.send(Bye("closing", []))
                ends.listener.close()
                ends.tx.close()
                assert await ends.receiver.next("received") == Bye("closing", [])
                assert await ends.receiver.next("ended") is None

    async def test_closing_takes_no_time(self, namespace: str) -> None:
        async with pair(local(), namespace) as ends:
            ends.rx._post._ready.busy = True  # type: ignore[attr-defined] # it takes nothing more
            for _ in range(300):
                ends.tx.send(Bye("x" * 100_000, []))
            began = time.monotonic()
            ends.listener.close()
            ends.tx.close()
            assert time.monotonic() - began < 0.1
            assert isinstance(ends.listener, ZmqListener)
            assert not ends.listener._ready.open
