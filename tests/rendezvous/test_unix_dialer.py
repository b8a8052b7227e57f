"""The dialer: waits for who is not there yet, comes back after an end, costs next to nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import time

import pytest

from omni_async.errors import ProtocolError, UsageError
from omni_async.model import Endpoint
from omni_async.rendezvous import redialer
from omni_async.rendezvous.unix_channel import UnixChannels, UnixListener
from tests.rendezvous.lines import Pair, Recorder, hello, pair, want


def endpoint(namespace: str) -> Endpoint:
    return Endpoint(namespace, "0", 0, 0)


async def test_receiver_first(namespace: str) -> None:
    channels = UnixChannels()
    handler = Recorder()
    address = channels.address_of(endpoint(namespace))
    dialer = channels.dial(address, hello("receiver", namespace), handler)
    assert dialer.channel is None
    assert isinstance(dialer.refused(), ConnectionRefusedError)
    await asyncio.sleep(0.05)
    sender = Recorder()
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
    with pytest.raises(UsageError):
        UnixChannels().dial("tcp://x:1", hello("receiver", namespace), Recorder())


async def test_comes_back_after_an_end(namespace: str) -> None:
    async with pair(UnixChannels(), namespace) as ends:
        for _ in range(5):
            ends.sender.channels[-1].close()
            assert await ends.receiver.next("ended") is None
            assert isinstance(ends.dialer.refused(), ConnectionResetError)
            assert ends.dialer.channel is None
            await ends.receiver.next("opened")
            await ends.sender.next("opened")


async def test_comes_back_after_its_own_channel_was_closed(namespace: str) -> None:
    async with pair(UnixChannels(), namespace) as ends:
        ends.rx.close()
        assert ends.dialer.channel is None
        again = await ends.receiver.next("opened")
        assert ends.dialer.channel is again


async def test_no_descriptor_left_to_dial_with(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(UnixChannels(), namespace) as ends:
        ends.rx.close()
        plain = socket.socket
        errors = [OSError(errno.EMFILE, "Too many open files")]

        def failing(*arguments: int, **more: int) -> socket.socket:
            if errors and not more:
                raise errors.pop()
            return plain(*arguments, **more)

        monkeypatch.setattr(socket, "socket", failing)
        await ends.receiver.next("opened")
        assert not errors


async def test_back_off_grows_while_lines_do_not_last(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(UnixChannels(), namespace) as ends:
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
    async with pair(UnixChannels(), namespace) as ends:
        ends.rx._end(ProtocolError("nonsense"))  # type: ignore[attr-defined]
        assert "nonsense" in str(ends.dialer.refused())
        began = time.monotonic()
        await ends.receiver.next("ended")
        await ends.receiver.next("opened")
        assert time.monotonic() - began > 0.3


class TestAttempt:
    async def test_nobody_there(self, namespace: str) -> None:
        channels = UnixChannels()
        address = channels.address_of(endpoint(namespace))
        dialer = channels.dial(address, hello("receiver", namespace), Recorder())
        began = time.monotonic()
        assert await dialer.attempt() is None
        assert time.monotonic() - began < 0.1
        assert isinstance(dialer.refused(), ConnectionRefusedError)
        dialer.close()
        assert await dialer.attempt() is None

    async def test_does_not_wait_for_the_back_off(self, namespace: str) -> None:
        channels = UnixChannels()
        address = channels.address_of(endpoint(namespace))
        handler = Recorder()
        dialer = channels.dial(address, hello("receiver", namespace), handler)
        await asyncio.sleep(0.15)
        sender = Recorder()
        listener = await channels.listen(endpoint(namespace), hello("sender", namespace), sender)
        first, second = await asyncio.gather(dialer.attempt(), dialer.attempt())
        assert first is second is dialer.channel is not None
        assert await dialer.attempt() is first
        dialer.close()
        listener.close()
        await sender.next("ended")

    async def test_cancelled(self, namespace: str) -> None:
        channels = UnixChannels()
        server = socket.socket(socket.AF_UNIX)
        address = channels.address_of(endpoint(namespace))
        server.bind("\0" + address.removeprefix("unix:@"))
        server.listen()
        dialer = channels.dial(address, hello("receiver", namespace), Recorder())
        task = asyncio.ensure_future(dialer.attempt())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiting = asyncio.ensure_future(dialer.attempt())
        await asyncio.sleep(0.01)
        dialer.close()
        assert await waiting is None
        server.close()

    async def test_somebody_who_says_nothing(self, namespace: str) -> None:
        channels = UnixChannels(handshake_timeout=0.05)
        server = socket.socket(socket.AF_UNIX)
        address = channels.address_of(endpoint(namespace))
        server.bind("\0" + address.removeprefix("unix:@"))
        server.listen()
        dialer = channels.dial(address, hello("receiver", namespace), Recorder())
        assert await dialer.attempt() is None
        assert "no Hello within 0.05 s" in str(dialer.refused())
        assert f"process {os.getpid()}" in str(dialer.refused())
        dialer.close()
        server.close()

    async def test_somebody_who_leaves(self, namespace: str) -> None:
        channels = UnixChannels()
        server = socket.socket(socket.AF_UNIX)
        address = channels.address_of(endpoint(namespace))
        server.bind("\0" + address.removeprefix("unix:@"))
        server.listen()
        dialer = channels.dial(address, hello("receiver", namespace), Recorder())
        server.accept()[0].close()
        assert await dialer.attempt() is None
        assert isinstance(dialer.refused(), OSError)
        dialer.close()
        server.close()


async def test_waiting_costs_next_to_nothing(namespace: str) -> None:
    channels = UnixChannels()
    address = channels.address_of(endpoint(namespace))
    dialer = channels.dial(address, hello("receiver", namespace), Recorder())
    await asyncio.sleep(0.2)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.monotonic()
    await asyncio.sleep(1.0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used / (time.monotonic() - began) < 0.02
    dialer.close()


async def test_close_is_idempotent_and_ends_the_line(namespace: str) -> None:
    async with pair(UnixChannels(), namespace) as ends:
        ends.dialer.close()
        ends.dialer.close()
        assert ends.dialer.channel is None
        assert await ends.sender.next("ended") is None
        await asyncio.sleep(0.02)
        assert ends.receiver.queue("opened").empty()


class TestListener:
    async def test_lines_outlive_it(self, namespace: str) -> None:
        async with pair(UnixChannels(), namespace) as ends:
            ends.listener.close()
            ends.rx.send(want(1))
            assert await ends.sender.next("received") == want(1)

    async def test_no_descriptor_left_to_accept_with(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends = Pair(UnixChannels(), namespace)
        ends.listener = await ends.channels.listen(
            ends.endpoint, hello("sender", namespace), ends.sender
        )
        assert isinstance(ends.listener, UnixListener)
        accept = socket.socket.accept
        errors = [errno.ECONNABORTED, errno.EMFILE]

        def failing(self: socket.socket) -> tuple[socket.socket, object]:
            if errors:
                number = errors.pop(0)
                raise OSError(number, os.strerror(number))
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", failing)
        ends.dialer = ends.channels.dial(
            ends.listener.address, hello("receiver", namespace), ends.receiver
        )
        began = time.monotonic()
        await ends.receiver.next("opened")
        assert 0.05 < time.monotonic() - began < 5
        ends.close()

    async def test_closed_while_it_has_no_descriptor_left(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        channels = UnixChannels()
        listener = await channels.listen(
            endpoint(namespace), hello("sender", namespace), Recorder()
        )
        paused = asyncio.Event()

        def failing(self: socket.socket) -> tuple[socket.socket, object]:
            paused.set()
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket.socket, "accept", failing)
        dialer = channels.dial(listener.address, hello("receiver", namespace), Recorder())
        await paused.wait()
        listener.close()
        dialer.close()
