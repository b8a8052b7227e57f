"""A sender's port takes any message, and goes on serving.

The short form runs always; the long one is a soak. A failure names its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import Any

import psutil
import pytest

import omni_async
from omni_async.cli.free_ports import FreePorts
from omni_async.errors import OmniAsyncError
from omni_async.registry import register_backend
from omni_async.rendezvous.messages import Done
from omni_async.testing.doubles.addressed import LoopbackZmq
from tests.rendezvous.lines import Recorder, hello, want
from tests.rendezvous.nonsense import Nonsense, corpus
from tests.rendezvous.zmq_wire import HOST, Bare, Listening, listening, local, until

__all__ = ["listening"]

SHORT = pytest.param(3_000, 1)
LONG = [pytest.param(100_000, seed, marks=pytest.mark.soak) for seed in (1, 2, 3)]
BURST = 10
"""Messages between two looks whether real words are served."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("omni_async").setLevel(logging.CRITICAL)


@pytest.fixture(autouse=True)
def loud_again() -> Any:
    yield
    logging.getLogger("omni_async").setLevel(logging.NOTSET)


@pytest.mark.parametrize("name", corpus())
async def test_each_message_of_the_corpus(listening: Listening, name: str) -> None:
    """First of all, and on a line."""
    frames = corpus()[name]
    bare = listening.bare()
    bare.say(*frames)
    await bare.hello(listening.namespace)
    line = await listening.handler.next("opened")
    bare.say(*frames)
    bare.word(want(1))
    await until(lambda: not listening.handler.queue("ended").empty() or heard(listening, 1))
    line.close()
    await listening.works()


def heard(house: Listening, op: int) -> bool:
    return want(op) in house.handler.words


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "seed"), [SHORT, *LONG])
async def test_listener_with_a_line_in_between(listening: Listening, count: int, seed: int) -> None:
    nonsense = Nonsense(seed, listening.namespace)
    handler = listening.handler
    good = Recorder()
    dialer = local().dial(listening.address, hello("receiver", listening.namespace), good)
    channel = await good.next("opened")
    line = await handler.next("opened")
    words = 0
    for number in range(count // BURST):
        bad = Bare(listening.address)
        if not number % 2:  # on a line, else from somebody unknown
            bad.word(hello("receiver", listening.namespace))
        for _ in range(BURST):
            bad.say(*(nonsense.first() if number % 2 else [nonsense.body()]))
        channel.send(want(number))
        line.send(Done(number))
        assert await good.next("received") == Done(number)
        await until(lambda n=number: heard(listening, n))  # type: ignore[misc]
        words += len(handler.words)
        handler.words.clear()
        bad.close()
        await asyncio.sleep(0)
    assert words > count // 3  # of which most were nonsense that a handler has to judge
    assert good.queue("ended").empty()
    dialer.close()
    await until(lambda: listening.listener._lines == 0)
    assert listening.listener.dropped > count // 3
    await listening.works()


@pytest.mark.parametrize(("count", "seed"), [pytest.param(200, 1), pytest.param(5000, 2, marks=pytest.mark.soak)])  # fmt: skip
@pytest.mark.timeout(600)
async def test_connections_that_are_not_quite_zeromq(
    listening: Listening, count: int, seed: int
) -> None:
    streams = Nonsense(seed, listening.namespace).streams()
    for number in range(count):
        with contextlib.suppress(OSError), socket.create_connection((HOST, listening.listener.port)) as sock:  # fmt: skip
            sock.sendall(next(streams))
        if number % 20 == 0:
            await asyncio.sleep(0.01)
    await until(lambda: not listening.listener._connections, 30)
    await listening.works()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "seed"), [SHORT, *LONG])
async def test_whole_sender_with_payloads_in_between(namespace: str, count: int, seed: int) -> None:
    """What a line's nonsense means to the rendezvous behind it: nothing that others notice."""
    register_backend(LoopbackZmq())
    nonsense = Nonsense(seed, namespace)
    problems: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context))
    changes = {"backend": "LoopbackZmqDouble", "verb": "write"}
    with FreePorts() as ports:
        port = ports.of("sender")
        address = f"tcp://{HOST}:{port}"
        spec = {
            "name": "loopback-zmq",
            "extra": {
                "host": HOST,
                "zmq_port": port,
                "sender_host": HOST,
                "sender_zmq_port": port,
                "memory_pool_size": 64 << 20,
                "buffer_ttl_seconds": 0.5,
            },
        }
        async with (
            omni_async.open_transport(
                spec, role="sender", stage="0", namespace=namespace, linger=0
            ) as tx,
            omni_async.open_transport(spec, role="receiver", stage="1", namespace=namespace) as rx,
        ):
            before, began = 0, time.monotonic()
            for number in range(count // BURST):
                bad = Bare(address)
                bad.word(hello("receiver", namespace, **changes))
                for _ in range(BURST):
                    bad.say(nonsense.body())
                await tx.put("0", "1", "key", bytes(5000))  # what the nonsense asks for
                key = f"good {number}"
                await tx.put("0", "1", key, number.to_bytes(8, "little") * 100)
                got = await rx.get("0", "1", key, timeout=20)
                assert got.value == number.to_bytes(8, "little") * 100
                with contextlib.suppress(OmniAsyncError):
                    await rx.get("0", "1", "key", timeout=0)
                bad.close()
                if number == count // BURST // 2:
                    before = psutil.Process().memory_info().rss
            assert problems == []
            after = psutil.Process().memory_info().rss
            assert after - before < 50 << 20, f"in {time.monotonic() - began:.0f} s"
            assert tx.health().errors == 0
