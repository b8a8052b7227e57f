"""Two processes: what one learns when the other is killed, stopped, forked, or of another wire."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time

from omni_async.errors import ProtocolError
from omni_async.model import Endpoint
from omni_async.rendezvous.messages import Done
from omni_async.rendezvous.unix_channel import UnixChannels
from tests.rendezvous.agents import Agents, agents
from tests.rendezvous.lines import Recorder, hello, regions, want

__all__ = ["agents"]


class Client:
    """A receiver here that dials the agent."""

    def __init__(self, namespace: str, **options: float) -> None:
        channels = UnixChannels(**options)  # type: ignore[arg-type]
        address = channels.address_of(Endpoint(namespace, "0", 0, 0))
        self.handler = Recorder()
        self.dialer = channels.dial(address, hello("receiver", namespace), self.handler)

    def order(self, key: str, op: int = 1) -> None:
        assert self.dialer.channel is not None
        self.dialer.channel.send(want(op, key))

    def close(self) -> None:
        self.dialer.close()


async def test_killed_peer_is_known_at_once_and_its_successor_is_found(
    agents: Agents, namespace: str
) -> None:
    client = Client(namespace)
    first = await agents.ready()
    await client.handler.next("opened")
    client.order("echo")
    assert await client.handler.next("received") == Done(1)
    began = time.monotonic()
    first.process.kill()
    await client.handler.next("ended")
    assert time.monotonic() - began < 0.5
    second = await agents.ready()
    channel = await client.handler.next("opened")
    assert f"process {second.process.pid}" in channel.name
    client.order("echo", 2)
    assert await client.handler.next("received") == Done(2)
    client.close()


async def test_stopped_peer_is_silent_not_dead(agents: Agents, namespace: str) -> None:
    client = Client(namespace, silent_after=0.4, peer_timeout=1.2)
    peer = await agents.ready()
    await client.handler.next("opened")
    peer.process.send_signal(signal.SIGSTOP)
    client.order("echo")
    assert 0.4 <= await client.handler.next("silent") < 1.2 <= await client.handler.next("silent")
    assert client.handler.queue("ended").empty()
    peer.process.send_signal(signal.SIGCONT)
    assert await client.handler.next("received") == Done(1)
    client.close()


async def test_peer_in_a_synchronous_step(agents: Agents, namespace: str) -> None:
    client = Client(namespace, silent_after=0.3)
    await agents.ready()
    await client.handler.next("opened")
    client.order("block:0.8")
    await client.handler.next("silent")
    assert await client.handler.next("received") == Done(1)
    client.close()


async def test_descriptors_arrive(agents: Agents, namespace: str) -> None:
    client = Client(namespace)
    await agents.ready()
    await client.handler.next("opened")
    for op in range(20):
        client.order(f"fds:{op}", op)
    for op in range(20):
        assert await client.handler.next("received") == regions(op)
        assert await client.handler.next("received") == Done(op)
    for op, fds in enumerate(client.handler.fds[::2]):
        assert [os.pread(fd, 100, 0) for fd in fds] == [b"region %d" % n for n in range(op)]
        for fd in fds:
            os.close(fd)
    client.close()


async def test_another_wire_version(agents: Agents, namespace: str) -> None:
    await agents.ready(wire="2")
    client = Client(namespace)
    assert await client.dialer.attempt() is None
    error = client.dialer.refused()
    assert isinstance(error, ProtocolError)
    assert "speaks 1" in str(error)
    assert "speaks 2" in str(error)
    assert client.handler.events == []
    client.close()


async def test_forked_child_does_not_hold_the_line(agents: Agents, namespace: str) -> None:
    """A worker that the peer forked outlives it; neither line nor name outlive it."""
    client = Client(namespace)
    peer = await agents.ready()
    await client.handler.next("opened")
    client.order("fork")
    assert await client.handler.next("received") == Done(1)
    began = time.monotonic()
    peer.process.kill()
    await client.handler.next("ended")
    assert time.monotonic() - began < 0.5
    client.close()
    sender = hello("sender", namespace)
    channels = UnixChannels()
    (await channels.listen(Endpoint(namespace, "0", 0, 0), sender, Recorder())).close()


async def test_starters_at_once_over_a_stale_socket(agents: Agents, namespace: str) -> None:
    with tempfile.TemporaryDirectory(prefix="omni-") as folder:
        path = UnixChannels(folder).address_of(Endpoint(namespace, "0", 0, 0))
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(path.removeprefix("unix:"))
        started = [await agents.spawn(socket_dir=folder) for _ in range(4)]
        words = sorted([await one.line() for one in started])
        assert words == ["UsageError", "UsageError", "UsageError", "ready"]
        for one in started:
            await one.end(0)
        assert os.listdir(folder) == []
