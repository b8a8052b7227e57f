"""Processes with a side channel between them: killed, restarted, stopped, blocked, forked, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from omni_async.errors import ProtocolError, UsageError
from omni_async.model import Endpoint
from omni_async.rendezvous.messages import Bye, Done, Offer
from omni_async.rendezvous.zmq_channel import ZmqChannels, ZmqLine
from omni_async.rendezvous.zmq_window import WINDOW
from tests.rendezvous.agents import Agent, Agents, agents
from tests.rendezvous.lines import Recorder, hello, want
from tests.rendezvous.zmq_wire import HOST, listens, local, until

__all__ = ["agents"]

NOTICED = 0.5
"""Seconds; some hundredths where nothing else runs."""
CHUNK = 100_000


class Client:
    """A receiver here that dials the agent."""

    def __init__(self, namespace: str, peer: Agent, **options: Any) -> None:
        self.handler = Recorder()
        self.dialer = ZmqChannels(**options).dial(
            f"tcp://{HOST}:{peer.port}", hello("receiver", namespace), self.handler
        )

    def order(self, key: str, op: int = 1) -> None:
        assert self.dialer.channel is not None
        self.dialer.channel.send(want(op, key))

    def close(self) -> None:
        self.dialer.close()


async def test_killed_peer_is_known_at_once_and_its_successor_is_found(
    agents: Agents, namespace: str
) -> None:
    peer = await agents.ready(port="0")
    client = Client(namespace, peer)
    for round in range(5):
        channel = await client.handler.next("opened")
        assert f"process {peer.process.pid}" in channel.name
        client.order("echo", round)
        assert await client.handler.next("received") == Done(round)
        began = time.monotonic()
        peer.process.kill()
        await client.handler.next("ended")
        assert time.monotonic() - began < NOTICED
        peer = await agents.ready(port=str(peer.port))  # at once, on the same port
    client.close()


async def test_killed_receiver_is_known_at_once(namespace: str) -> None:
    script = (
        "import asyncio, sys\n"
        "from omni_async.rendezvous.zmq_channel import ZmqChannels\n"
        "from tests.rendezvous.lines import Recorder, hello\n"
        "async def main():\n"
        "    ZmqChannels().dial(sys.argv[1], hello('receiver', sys.argv[2]), Recorder())\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    async with listens(local(), namespace) as house:
        for _ in range(3):
            process = await run(script, house.address, namespace)
            await house.handler.next("opened")
            began = time.monotonic()
            process.kill()
            assert await house.handler.next("ended") is None
            assert time.monotonic() - began < NOTICED
            await process.wait()
        assert house.listener.dropped == 0


async def test_stopped_peer_is_silent_not_dead(agents: Agents, namespace: str) -> None:
    peer = await agents.ready(port="0")
    client = Client(namespace, peer, silent_after=0.4, peer_timeout=1.2)
    await client.handler.next("opened")
    peer.process.send_signal(signal.SIGSTOP)
    client.order("echo")
    assert 0.4 <= await client.handler.next("silent") < 1.2 <= await client.handler.next("silent")
    assert client.handler.queue("ended").empty()
    peer.process.send_signal(signal.SIGCONT)
    assert await client.handler.next("received") == Done(1)
    client.close()


async def test_a_stopped_peer_is_sent_no_more_than_a_window(agents: Agents, namespace: str) -> None:
    """The rest waits here, in order, and all of it arrives when it goes on."""
    peer = await agents.ready(port="0")
    client = Client(namespace, peer)
    line = await client.handler.next("opened")
    assert isinstance(line, ZmqLine)
    peer.process.send_signal(signal.SIGSTOP)
    for op in range(400):
        line.send(Offer(op, 1, [1], [], [], bytes(CHUNK)))
        line.send(want(op))
        await asyncio.sleep(0)
    await asyncio.sleep(0.3)
    assert WINDOW <= line._window.outstanding.nbytes < WINDOW + 2 * CHUNK
    assert line.queued > 400 * CHUNK
    peer.process.send_signal(signal.SIGCONT)
    for op in range(400):
        assert await client.handler.next("received") == Done(op)
    await until(lambda: line.queued < CHUNK)
    client.close()


async def test_a_peer_in_a_synchronous_step_is_silent_and_its_memory_bounded(
    agents: Agents, namespace: str
) -> None:
    """Its libzmq goes on reading while it does not."""
    peer = await agents.ready(port="0")
    process = psutil.Process(peer.process.pid)
    client = Client(namespace, peer, silent_after=0.3)
    line = await client.handler.next("opened")
    client.order("echo")
    await client.handler.next("received")
    before = process.memory_info().rss
    client.order("block:1.2")
    await asyncio.sleep(0.05)
    for op in range(1000):
        line.send(Offer(op, 1, [1], [], [], bytes(CHUNK)))
    await client.handler.next("silent")
    await asyncio.sleep(0.3)
    assert process.memory_info().rss - before < 3 * WINDOW
    assert await client.handler.next("received") == Done(1)
    client.order("echo", 2)
    assert await client.handler.next("received") == Done(2)
    client.close()


async def test_another_wire_version(agents: Agents, namespace: str) -> None:
    client = Client(namespace, await agents.ready(port="0", wire="2"))
    assert await client.dialer.attempt() is None
    error = client.dialer.refused()
    assert isinstance(error, ProtocolError)
    assert "speaks 1" in str(error)
    assert "speaks 2" in str(error)
    assert client.handler.events == []
    client.close()


async def test_last_words_of_a_process_that_ends(agents: Agents, namespace: str) -> None:
    for _ in range(3):
        client = Client(namespace, await agents.ready(port="0"))
        await client.handler.next("opened")
        client.order("leave")
        assert await client.handler.next("received") == Bye("leaving", [])
        await client.handler.next("ended")
        client.close()


async def test_starters_at_once(agents: Agents, namespace: str) -> None:
    """One has the port; the others fail, and say who has it."""
    peer = await agents.ready(port="0")
    await peer.end()
    port = str(peer.port)
    started = [await agents.spawn(port=port) for _ in range(4)]
    words = sorted([await one.line() for one in started])
    assert words == ["UsageError", "UsageError", "UsageError", f"ready {port}"]
    with pytest.raises(UsageError, match="is served by process"):
        await ZmqChannels(HOST, peer.port).listen(
            Endpoint(namespace, "0", 0, 0), hello("sender", namespace), Recorder()
        )


class TestForks:
    async def test_a_child_of_the_sender_holds_neither_line_nor_port(
        self, agents: Agents, namespace: str
    ) -> None:
        peer = await agents.ready(port="0")
        client = Client(namespace, peer)
        await client.handler.next("opened")
        client.order("fork")
        assert await client.handler.next("received") == Done(1)
        began = time.monotonic()
        peer.process.kill()
        await client.handler.next("ended")
        assert time.monotonic() - began < NOTICED
        client.close()
        again = await ZmqChannels(HOST, peer.port).listen(
            Endpoint(namespace, "0", 0, 0), hello("sender", namespace), Recorder()
        )
        again.close()

    async def test_a_child_of_the_receiver_holds_no_line(self, namespace: str) -> None:
        script = (
            "import asyncio, os, sys, time\n"
            "from omni_async.rendezvous.zmq_channel import ZmqChannels\n"
            "from tests.rendezvous.lines import Recorder, hello\n"
            "async def main():\n"
            "    handler = Recorder()\n"
            "    ZmqChannels().dial(sys.argv[1], hello('receiver', sys.argv[2]), handler)\n"
            "    await handler.next('opened')\n"
            "    if not os.fork():\n"
            "        os.closerange(0, 3)\n"
            "        time.sleep(3)\n"
            "        os._exit(0)\n"
            "    await asyncio.sleep(60)\n"
            "asyncio.run(main())\n"
        )
        async with listens(local(), namespace) as house:
            process = await run(script, house.address, namespace)
            await house.handler.next("opened")
            await asyncio.sleep(0.2)
            began = time.monotonic()
            process.kill()
            await house.handler.next("ended")
            assert time.monotonic() - began < NOTICED
            await process.wait()

    def test_a_child_has_channels_of_its_own_and_leaves_those_of_its_parent(
        self, tmp_path: Path
    ) -> None:
        script = """
import asyncio, gc, os, sys
from omni_async.model import Endpoint
from omni_async.rendezvous.messages import Done
from omni_async.rendezvous.zmq_channel import ZmqChannels
from tests.rendezvous.lines import Pair, want

async def exchange(ends):
    ends.rx.send(want(1)); ends.tx.send(Done(1))
    await ends.sender.next("received"); await ends.receiver.next("received")

async def child():
    ends = Pair(ZmqChannels("127.0.0.1"), "child")
    await ends.open(); await exchange(ends); ends.close()

async def main():
    ends = Pair(ZmqChannels("127.0.0.1"), "parent")
    await ends.open(); await exchange(ends)
    pid = os.fork()
    if not pid:
        return ends
    await exchange(ends)
    assert os.waitpid(pid, 0)[1] == 0
    await exchange(ends)
    ends.close()

loop = asyncio.new_event_loop()
inherited = loop.run_until_complete(main())
if inherited is not None:
    asyncio.events._set_running_loop(None)
    asyncio.run(child())
    inherited.close()
    del inherited
    gc.collect()
    print("child")
else:
    print("parent")
"""
        done = ended(script, "-X", "dev", "-W", "error")
        assert done.stdout.split() == ["child", "parent"]


class TestExits:
    """Nothing keeps a process from ending, and nothing is said about it."""

    @pytest.mark.parametrize(
        "body",
        [
            "dialer = channels.dial('tcp://127.0.0.1:9', mine, Recorder()); await asyncio.sleep(0.1)",
            "dialer = channels.dial('tcp://127.0.0.1:9', mine, Recorder())\n    dialer.close()",
            "dialer = channels.dial('tcp://192.0.2.250:9', mine, Recorder()); await asyncio.sleep(0.1)",
            "listener = await channels.listen(where, theirs, Recorder())",
            "listener = await channels.listen(where, theirs, Recorder())\n    listener.close()",
            "ends = Pair(channels, 'n'); await ends.open()",
            "ends = Pair(channels, 'n'); await ends.open(); ends.tx.send(Bye('x' * 1000000)); ends.close()",
            "ends = Pair(channels, 'n'); await ends.open(); raise SystemExit(0)",
        ],
    )
    @pytest.mark.parametrize("keys", [False, True])
    def test_of_an_interpreter(self, body: str, keys: bool) -> None:
        curve = "dict(server_secret_key=s, allowed_clients=[p], server_public_key=p, client_secret_key=s)"
        script = f"""
import asyncio, zmq
from omni_async.model import Endpoint
from omni_async.rendezvous.messages import Bye
from omni_async.rendezvous.zmq_channel import ZmqChannels
from tests.rendezvous.lines import Pair, Recorder, hello
p, s = [key.decode() for key in zmq.curve_keypair()]
async def main():
    channels = ZmqChannels("127.0.0.1", curve={curve if keys else None})
    mine, theirs = hello("receiver", "n"), hello("sender", "n")
    where = Endpoint("n", "0", 0, 0)
    {body}
asyncio.run(main())
"""
        began = time.monotonic()
        done = ended(script)
        assert time.monotonic() - began < 2 + IMPORTS
        assert done.stderr == ""

    def test_two_loops_one_after_the_other_and_one_in_another_thread(self) -> None:
        script = """
import asyncio, threading
from omni_async.rendezvous.messages import Done
from omni_async.rendezvous.zmq_channel import ZmqChannels
from tests.rendezvous.lines import Pair, want

channels = ZmqChannels("127.0.0.1")

async def main(number):
    ends = Pair(channels, f"loop-{number}")
    await ends.open()
    for op in range(100):
        ends.rx.send(want(op)); ends.tx.send(Done(op))
    for op in range(100):
        await ends.sender.next("received"); await ends.receiver.next("received")
    ends.close()

asyncio.run(main(1))
asyncio.run(main(2))
threads = [threading.Thread(target=asyncio.run, args=(main(n),)) for n in (3, 4, 5)]
for thread in threads: thread.start()
asyncio.run(main(6))
for thread in threads: thread.join()
print("done")
"""
        assert ended(script, "-X", "dev").stdout == "done\n"


IMPORTS = 3.0
"""Seconds that a new interpreter may take on a busy machine before it does anything."""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


async def run(script: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, *arguments), env=environment()
    )


def ended(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *flags, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
