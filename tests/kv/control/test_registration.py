"""Beats to a proxy that comes and goes, is slow, or is somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import zmq

from omni_async.cli.free_ports import FreePorts
from omni_async.errors import ClosedError, TransferTimeout, UsageError
from omni_async.kv.control import Registered, Registration
from omni_async.rendezvous import zmq_beats, zmq_context

HOST = "127.0.0.1"
RECORD = Registered(
    type="P",
    http_address="127.0.0.1:20005",
    zmq_address="host:127.0.0.1,handshake:6301,notify:6105",
    transfer_mode="WRITE",
)


@pytest.fixture
def port() -> Iterator[int]:
    with FreePorts() as ports:
        yield ports.of("proxy")


class Proxy:
    """A ROUTER; a thread notes when each message came."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self.came: list[tuple[float, list[bytes]]] = []
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.IPV6, int(":" in host))
        self._router.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self._over = False
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def _hear(self) -> None:
        while not self._over:
            if self._router.poll(20):
                self.came.append((time.monotonic(), self._router.recv_multipart()))
        self._router.close()
        self._context.term()

    async def until(self, count: int, seconds: float = 10.0) -> list[list[bytes]]:
        over = time.monotonic() + seconds
        while len(self.came) < count:
            assert time.monotonic() < over, f"{len(self.came)} beats came"
            await asyncio.sleep(0.005)
        return [frames for _, frames in self.came]

    def close(self) -> None:
        self._over = True
        self._thread.join()


@contextlib.contextmanager
def proxy(port: int, host: str = HOST) -> Iterator[Proxy]:
    made = Proxy(port, host)
    try:
        yield made
    finally:
        made.close()


@contextlib.asynccontextmanager
async def registered(
    port: int, host: str = HOST, interval: float = 0.05
) -> AsyncIterator[Registration]:
    made = Registration(RECORD, host, port, interval)
    try:
        yield made
    finally:
        await made.aclose()


async def test_one_frame_again_and_again(port: int) -> None:
    with proxy(port) as there:
        async with registered(port) as registration:
            await registration.wait(10)
            for frames in await there.until(4):
                assert frames[1:] == [RECORD.packed()]
            assert registration.reached
            assert registration.beats >= 3  # a beat may arrive before it is counted
        await asyncio.sleep(0.1)
        count = len(there.came)
        await asyncio.sleep(0.2)
        assert len(there.came) == count
        await registration.aclose()


async def test_the_proxy_comes_later_and_comes_again(port: int) -> None:
    async with registered(port, interval=1.0) as registration:
        with pytest.raises(TransferTimeout, match="no proxy takes beats") as caught:
            await registration.wait(0.4)
        assert (caught.value.phase, registration.reached) == ("registration", False)
        waiting = asyncio.ensure_future(registration.wait())
        with proxy(port) as there:
            started = time.monotonic()
            await waiting
            await there.until(1)
            assert there.came[0][0] - started < 1.0
            assert len(there.came) == 1  # none of those that nobody took
        over = time.monotonic() + 10
        while registration.reached:
            assert time.monotonic() < over
            await asyncio.sleep(0.01)
        with proxy(port) as there:
            await registration.wait(10)
            await there.until(1)


async def test_a_loop_that_is_busy_does_not_hold_beats_up(port: int) -> None:
    with proxy(port) as there:
        async with registered(port) as registration:
            await registration.wait(10)
            await there.until(1)
            before = len(there.came)
            time.sleep(0.5)  # noqa: ASYNC251 - as a model's step that does not give way
            assert len(there.came) >= before + 5


async def test_a_proxy_that_reads_no_more_is_not_sent_for_ever(port: int) -> None:
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        mute.bind((HOST, port))
        mute.listen()
        async with registered(port) as registration:
            await asyncio.sleep(0.5)
            assert (registration.reached, registration.beats) == (False, 0)


@pytest.mark.parametrize("host", ["localhost", "::1"])
async def test_hosts(port: int, host: str) -> None:
    with contextlib.ExitStack() as stack:
        try:
            there = stack.enter_context(proxy(port, HOST if host == "localhost" else host))
        except zmq.ZMQError:
            pytest.skip("no IPv6 here")
        async with registered(port, host) as registration:
            await registration.wait(10)
            await there.until(2)


async def test_a_name_that_moves(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_beats, "_NAMES_LAST", 0.1)
    where: list[str] = []

    def answer(name: str, *_: Any, **__: Any) -> list[Any]:
        if not where:
            raise socket.gaierror("not yet")
        sixth = (socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0))
        return [sixth, (socket.AF_INET, 1, 6, "", (where[0], port))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    async with registered(port, "proxy.example") as registration:
        with pytest.raises(TransferTimeout):
            await registration.wait(0.2)
        where[:] = ["127.0.0.9"]
        with pytest.raises(TransferTimeout):
            await registration.wait(0.3)
        where[:] = [HOST]
        with proxy(port) as there:
            await registration.wait(10)
            await there.until(2)


async def test_no_sockets_are_left_for_now(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = zmq_context.new_socket
    missing = [True]

    def new_socket(kind: int) -> Any:
        if missing:
            raise zmq.ZMQError(24)
        return made(kind)

    monkeypatch.setattr(zmq_beats, "new_socket", new_socket)
    with proxy(port):
        async with registered(port) as registration:
            with pytest.raises(TransferTimeout):
                await registration.wait(0.2)
            missing.clear()
            await registration.wait(10)


async def test_a_name_service_that_hangs_does_not_hold_closing_up(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_beats, "_MOMENTS", 0.1)
    begun, answered = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> list[Any]:
        begun.set()
        answered.wait(30)
        raise socket.gaierror("no")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    async with registered(port, "proxy.example"):
        assert await asyncio.to_thread(begun.wait, 10)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    answered.set()
    threads = [one for one in threading.enumerate() if one.name.startswith("omni-async-beats")]
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


async def test_no_way_to_an_address_is_tried_again(port: int) -> None:
    async with registered(port, "fe80::1%nowhere9") as registration:
        with pytest.raises(TransferTimeout):
            await registration.wait(0.5)


async def test_a_thread_that_dies_is_told(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> bool:
        raise RuntimeError("broken")

    monkeypatch.setattr(zmq_beats, "_stopped", broken)
    async with registered(port) as registration:
        with pytest.raises(TransferTimeout):
            await registration.wait(0.2)
        assert "beats have ended" in caplog.text
    assert not registration.reached


async def test_closing_wakes_who_waits_and_is_soon(port: int) -> None:
    registration = Registration(RECORD, HOST, port)
    waiting = asyncio.ensure_future(registration.wait())
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await registration.aclose()
    await registration.aclose()
    assert time.monotonic() - started < 1.0
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await registration.wait()
    for thread in threading.enumerate():
        if thread.name.startswith("omni-async-beats"):
            thread.join(5)
            assert not thread.is_alive()


async def test_intervals_that_a_proxy_does_not_bear(port: int) -> None:
    for interval in (0, -1, 4.5, float("nan")):
        with pytest.raises(UsageError, match="forgets an instance that beats every"):
            Registration(RECORD, HOST, port, interval)
