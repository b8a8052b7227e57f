"""Where a sender listens: hosts in every spelling, ports that are taken, and by whom."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from omni_async._aio.executor import OwnedExecutor
from omni_async.errors import ConfigError, UsageError
from omni_async.model import Endpoint
from omni_async.rendezvous import zmq_bind, zmq_hosts
from omni_async.rendezvous.zmq_address import is_loopback
from omni_async.rendezvous.zmq_channel import ZmqChannels, ZmqListener
from omni_async.rendezvous.zmq_holder import holder_of
from omni_async.rendezvous.zmq_hosts import local_places, routed_address
from tests.descriptors import open_descriptors
from tests.rendezvous.lines import Recorder, hello, want
from tests.rendezvous.zmq_wire import HOST

HOLD = """
import socket, sys, time
sock = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
sys.stdin.read()
"""


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def link_local() -> str | None:
    """One of this machine's, such as ``fe80::1%lo``."""
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as lines:
            found = [line.split() for line in lines]
    except OSError:
        return None
    for digits, *_, link in found:
        if digits.startswith("fe80"):
            groups = ":".join(digits[at : at + 4] for at in range(0, 32, 4))
            return f"{ipaddress.ip_address(groups)}%{link}"
    return None


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


async def listen(host: str, namespace: str, port: int = 0) -> ZmqListener:
    return await ZmqChannels(host, port).listen(
        Endpoint(namespace, "0", 0, 0), hello("sender", namespace), Recorder()
    )


@pytest.fixture
def elsewhere() -> Iterator[tuple[int, int]]:
    """A port, and the process that holds it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.kill()


class TestHosts:
    @pytest.mark.parametrize(
        "host",
        [
            "localhost",
            "127.0.0.1",
            "127.0.0.2",
            pytest.param("::1", marks=needs_ipv6),
            pytest.param("[::1]", marks=needs_ipv6),
            pytest.param("0:0:0:0:0:0:0:1", marks=needs_ipv6),
            "auto",
            "",
            "*",
            "0.0.0.0",
            "::",
            "AUTO",
            pytest.param(socket.gethostname(), id="own name"),
        ],
    )
    async def test_works_and_what_it_tells_leads_there(self, host: str, namespace: str) -> None:
        handler, sender = Recorder(), Recorder()
        channels = ZmqChannels(host)
        listener = await channels.listen(
            Endpoint(namespace, "0", 0, 0), hello("sender", namespace), sender
        )
        assert listener.host not in ("", "0.0.0.0", "::", "auto", "*")
        for address in (listener.address, f"tcp://{listener.host}:{listener.port}"):
            dialer = channels.dial(address, hello("receiver", namespace), handler)
            channel = await handler.next("opened")
            channel.send(want(1))
            assert await sender.next("received") == want(1)
            dialer.close()
            await sender.next("ended")
        listener.close()

    @pytest.mark.skipif(link_local() is None, reason="this machine has no link-local address")
    async def test_link_local(self, namespace: str) -> None:
        host = link_local() or ""
        await self.test_works_and_what_it_tells_leads_there(host, namespace)
        listener = await listen(host, namespace)
        assert listener.host == host
        listener.close()

    @pytest.mark.parametrize(
        ("host", "text"),
        [
            ("127.0.0.1:5", "without a port"),
            ("[::1]:5", "without a port"),
            ("a b", "without a port"),
            ("no-such-host.invalid", "no-such-host.invalid"),
            ("192.0.2.250", "no address of this machine"),
            pytest.param("2001:db8::250", "no address of this machine", marks=needs_ipv6),
            ("x" * 300, "host"),
            ("é..x", "host"),
        ],
    )
    async def test_refused_with_the_reason(self, host: str, text: str, namespace: str) -> None:
        with pytest.raises(ConfigError, match=text):
            await listen(host, namespace)

    async def test_auto_is_the_routed_address(self, namespace: str) -> None:
        routed = routed_address()
        if routed is None:
            pytest.skip("this machine has no way out")
        listener = await listen("auto", namespace)
        assert listener.host == routed
        assert not is_loopback(listener.host)
        listener.close()

    async def test_else_that_of_its_name_else_loopback(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(zmq_hosts, "routed_address", lambda: None)
        named: list[Any] = []

        def lookup(host: str, port: int, *, type: int, flags: int) -> Any:
            if host == HOST:
                return [(socket.AF_INET, type, 6, "", (HOST, port))]
            assert host == socket.gethostname()
            if not named:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return named

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        executor = OwnedExecutor("test", 1)

        async def found() -> list[str]:
            return [place.host for place in await local_places("auto", 5, executor)]

        assert await found() == [HOST]
        assert "no address by which other hosts reach this one" in caplog.text
        named.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 5)))
        assert await found() == [HOST]
        named.append((socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", 5, 0, 0)))
        named.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 5)))
        assert await found() == ["10.0.0.7", "fd00::7"]
        executor.close()

    async def test_own_name_under_a_loopback_address_is_not_listened_at(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What others would be told is no address of this machine to them."""
        plain = socket.getaddrinfo

        def lookup(host: str, *arguments: Any, **more: Any) -> Any:
            return plain("127.0.1.1" if "name" in host else host, *arguments, **more)

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        monkeypatch.setattr(socket, "gethostname", lambda: "my-name")
        monkeypatch.setattr(zmq_hosts, "routed_address", lambda: "10.0.0.7")
        executor = OwnedExecutor("test", 1)
        assert [p.host for p in await local_places("my-name", 5, executor)] == ["10.0.0.7"]
        assert [p.host for p in await local_places("a-name", 5, executor)] == ["127.0.1.1"]
        assert "leads to loopback only" in caplog.text
        executor.close()

    async def test_no_packet_and_no_name_service_for_auto(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if routed_address() is None:
            pytest.skip("this machine has no way out")
        monkeypatch.setattr(socket, "gethostname", lambda: pytest.fail("asked"))
        executor = OwnedExecutor("test", 1)
        assert await local_places("auto", 5, executor)
        assert executor.started == 0
        executor.close()


class TestPorts:
    async def test_any_port_that_is_free(self, namespace: str) -> None:
        first, second = await listen(HOST, namespace), await listen(HOST, namespace)
        assert first.port != second.port != 0
        assert first.address == f"tcp://{HOST}:{first.port}"
        first.close()
        second.close()

    async def test_taken_by_another_process(
        self, elsewhere: tuple[int, int], namespace: str
    ) -> None:
        port, pid = elsewhere
        before = len(open_descriptors())
        with pytest.raises(UsageError) as caught:
            await listen(HOST, namespace, port)
        text = str(caught.value)
        assert f"port {port}" in text
        assert f"tcp://{HOST}:{port}" in text
        assert f"process {pid}" in text
        assert "import socket, sys, time" in text  # its command
        assert namespace in text
        assert "zmq_port" in text
        assert len(open_descriptors()) == before

    async def test_taken_by_this_process(self, namespace: str) -> None:
        first = await listen(HOST, namespace)
        with pytest.raises(UsageError, match="by this process already"):
            await listen(HOST, namespace, first.port)
        first.close()

    async def test_on_another_address_of_this_machine_it_is_free(self, namespace: str) -> None:
        first = await listen(HOST, namespace)
        second = await listen("127.0.0.2", namespace, first.port)
        first.close()
        second.close()

    async def test_is_waited_for_a_moment(self, elsewhere: tuple[int, int], namespace: str) -> None:
        """A process that was killed closes its sockets one by one."""
        port, pid = elsewhere
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, os.kill, pid, 9)
        listener = await listen(HOST, namespace, port)
        assert listener.port == port
        listener.close()

    async def test_at_once_again_after_closing(self, namespace: str) -> None:
        port = 0
        for _ in range(20):
            listener = await listen(HOST, namespace, port)
            port = listener.port
            listener.close()

    async def test_a_port_that_is_not_for_this_user(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def forbidden(self: socket.socket, address: Any) -> None:
            raise OSError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(socket.socket, "bind", forbidden)
        with pytest.raises(ConfigError, match="may not bind port 80; take one above 1023"):
            await listen(HOST, namespace, 80)

    async def test_no_descriptor_left(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(self: socket.socket, backlog: int) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket.socket, "listen", failing)
        with pytest.raises(ConfigError, match="Too many open files"):
            await listen(HOST, namespace)

    async def test_cancelled(self, elsewhere: tuple[int, int], namespace: str) -> None:
        port, _ = elsewhere
        task = asyncio.ensure_future(listen(HOST, namespace, port))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class TestHolder:
    def test_of_a_port_nobody_listens_at(self) -> None:
        with socket.socket() as sock:
            sock.bind((HOST, 0))
            assert holder_of(sock.getsockname()[1]) is None

    def test_is_this_process(self) -> None:
        with socket.create_server((HOST, 0)) as server:
            holder = holder_of(server.getsockname()[1])
        assert holder is not None
        assert holder.pid == os.getpid()
        assert str(holder) == "this process"

    @needs_ipv6
    def test_on_ipv6(self) -> None:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            holder = holder_of(server.getsockname()[1])
        assert holder is not None
        assert holder.pid == os.getpid()

    def test_that_cannot_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("omni_async.rendezvous.zmq_holder._has", lambda *_: False)
        with socket.create_server((HOST, 0)) as server:
            holder = holder_of(server.getsockname()[1])
        assert holder is not None
        assert holder.pid == 0
        assert f"of user {os.geteuid()}" in str(holder)

    def test_a_long_command_is_cut(self, elsewhere: tuple[int, int]) -> None:
        port, pid = elsewhere
        holder = holder_of(port)
        assert holder is not None
        assert holder.pid == pid
        assert len(holder.command) <= 120

    async def test_somebody_holds_it_and_does_not_listen(self, namespace: str) -> None:
        with socket.socket() as sock:  # without SO_REUSEADDR nobody may share it
            sock.bind((HOST, 0))
            with pytest.raises(UsageError, match="nobody listens there"):
                await listen(HOST, namespace, sock.getsockname()[1])


class TestConstruction:
    """Whichever step fails, its error is shown, and nothing stays."""

    @pytest.mark.parametrize(
        "step",
        [
            "omni_async.rendezvous.zmq_channel.new_socket",
            "omni_async.rendezvous.zmq_channel.ZmqListener",
            "omni_async.rendezvous.zmq_listener.Monitor",
            "omni_async.rendezvous.zmq_listener.ReadySocket",
            "omni_async.rendezvous.zmq_monitor.new_socket",
            "omni_async.rendezvous.zmq_monitor.ReadySocket",
            "omni_async.rendezvous.zmq_listener.ZmqListener.bind",
            "omni_async.rendezvous.zmq_channel.ZmqChannels._prepare",
        ],
    )
    async def test_a_step_that_fails(
        self, step: str, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any, **more: Any) -> Any:
            raise ZeroDivisionError("this step fails")

        with monkeypatch.context() as patched:
            patched.setattr(step, fail)
            with pytest.raises(ZeroDivisionError):
                await listen(HOST, namespace)
        listener = await listen(HOST, namespace)
        listener.close()
        listener.close()

    async def test_libzmq_does_not_take_the_socket(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port = 0
        plain = zmq_bind._bind

        def remembering(places: Any) -> socket.socket:
            nonlocal port
            sock = plain(places)
            port = sock.getsockname()[1]
            return sock

        monkeypatch.setattr(zmq_bind, "_bind", remembering)
        with monkeypatch.context() as patched:
            patched.setattr(ZmqListener, "bind", lambda self, sock: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await listen(HOST, namespace)
        listener = await listen(HOST, namespace, port)
        listener.close()


class TestWarning:
    async def test_beyond_loopback_one_clear_warning(
        self, namespace: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        if routed_address() is None:
            pytest.skip("this machine has no way out")
        with caplog.at_level(logging.WARNING):
            listener = await listen("auto", namespace)
        listener.close()
        (record,) = [each for each in caplog.records if "curve" in each.getMessage()]
        assert "not encrypted" in record.getMessage()
        assert listener.address in record.getMessage()

    async def test_on_loopback_none(self, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
        listener = await listen(HOST, namespace)
        listener.close()
        assert caplog.records == []


async def test_starting_takes_little_time(namespace: str) -> None:
    began = time.monotonic()
    listener = await listen("auto", namespace)
    assert time.monotonic() - began < 0.5
    listener.close()
