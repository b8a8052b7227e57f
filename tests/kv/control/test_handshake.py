"""The handshake port, asked as vLLM asks and as this library does; and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from omni_async.cli.free_ports import FreePorts
from omni_async.errors import ConfigError, ProtocolError, TransferTimeout, UsageError
from omni_async.kv.control import (
    AgentMetadata,
    HandshakePort,
    OwnMetadata,
    ask_handshake,
    open_handshake_port,
)
from omni_async.testing.leaks import traces
from tests.lost_masters import lookers

HOST = "127.0.0.1"
KINDS = ("task", "descriptor")
OURS = AgentMetadata(
    engine_id="127.0.0.1:6301",
    agent_metadata=b"engine",
    kv_caches_base_addr=[4096, 8192],
    num_blocks=64,
    block_len=1024,
    attn_backend_name="TORCH",
    omni_async=OwnMetadata(layout={"layers": 2}, tp_size=2, tp_rank=1, transport="tcp://a:1"),
)
LAYERS = {"layers.0": [b"a"], "layers.1": [b"b"]}


@contextlib.asynccontextmanager
async def opened(
    metadata: AgentMetadata = OURS, port: int = 0, host: str = HOST
) -> AsyncIterator[HandshakePort]:
    listening = await open_handshake_port(host, port, metadata, LAYERS)
    try:
        yield listening
    finally:
        listening.close()


@pytest.fixture
def free() -> Iterator[FreePorts]:
    with FreePorts() as ports:
        yield ports


@pytest.mark.parametrize("host", [HOST, "::1", "localhost"])
async def test_who_asks_is_told(host: str) -> None:
    if host == "::1":
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind((host, 0))
            except OSError:
                pytest.skip("no IPv6 here")
    async with opened(host=host) as listening:
        for _ in range(3):
            answer = await ask_handshake(host, listening.where.port, timeout=10)
            assert answer == (OURS, LAYERS)
        assert listening.answered == 3
        listening.tell(AgentMetadata(engine_id="other"), {})
        answer = await ask_handshake(host, listening.where.port, timeout=10)
        assert answer == (AgentMetadata(engine_id="other"), {})


async def test_a_hundred_at_once() -> None:
    async with opened() as listening:
        asking = (ask_handshake(HOST, listening.where.port, timeout=30) for _ in range(100))
        assert await asyncio.gather(*asking) == [(OURS, LAYERS)] * 100


@contextlib.contextmanager
def bare(port: int, kind: int = zmq.DEALER) -> Iterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    made = context.socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.connect(f"tcp://{HOST}:{port}")
    try:
        yield made
    finally:
        made.close()
        context.term()


async def told(asking: zmq.asyncio.Socket) -> None:
    """Ask as vLLM does, and look at each byte that it looks at."""
    await asking.send(b"get_meta_msg")
    first = await asyncio.wait_for(asking.recv_multipart(), 10)
    second = await asyncio.wait_for(asking.recv_multipart(), 10)
    assert (first[0], len(first), second[0], len(second)) == (b"", 2, b"", 2)
    metadata = msgspec.msgpack.decode(first[1])
    for name in ("engine_id", "agent_metadata", "kv_caches_base_addr", "num_blocks", "block_len"):
        assert metadata[name] == getattr(OURS, name)
    assert msgspec.msgpack.decode(second[1]) == LAYERS


async def test_it_survives_what_it_hears(tmp_path: Path) -> None:
    path = tmp_path / "touched"
    evil = b"cposix\nsystem\n(S'touch " + os.fsencode(path) + b"'\ntR."
    with pytest.raises(AttributeError):
        pickle.loads(evil.replace(b"system", b"nothing_such"))  # it is one
    rubbish = [
        [b""],
        [b"", b"get_meta_msg"],
        [b"get_meta_msg", b""],
        [b"pop_done_recv"],
        [b"GET / HTTP/1.1"],
        [msgspec.msgpack.encode({"type": "release", "transfer_id": "tx"})],
        [evil],
        [b"\xff" * 60_000],
        [b"a"] * 50,
        [os.urandom(100)],
    ]
    async with opened() as listening:
        port = listening.where.port
        with bare(port) as asking:
            for frames in rubbish:
                await asking.send_multipart(frames)
            await told(asking)
        assert (listening.dropped, listening.answered) == (len(rubbish), 1)
        with bare(port, zmq.REQ) as asking:  # what vLLM's own listener would end by
            await asking.send(b"get_meta_msg")
        with bare(port) as asking:  # longer than a question may be: its connection is ended
            await asking.send(b"x" * (1 << 20))
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack("<Q", 1 << 30), os.urandom(64)):
            for _ in range(20):
                with socket.create_connection((HOST, port)) as raw:
                    raw.sendall(data)
        with bare(port) as asking:
            await told(asking)
        assert not path.exists()
        assert (await ask_handshake(HOST, port, timeout=10)).metadata == OURS


async def test_who_has_gone_is_not_answered() -> None:
    async with opened() as listening:
        for _ in range(30):
            with bare(listening.where.port) as asking:
                await asking.send(b"get_meta_msg")
                await asyncio.sleep(0.001)
        assert (await ask_handshake(HOST, listening.where.port, timeout=10)).metadata == OURS


async def test_it_may_start_later(free: FreePorts) -> None:
    port = free.of("peer")
    asking = asyncio.ensure_future(ask_handshake(HOST, port, timeout=20))
    await asyncio.sleep(0.15)
    assert not asking.done()
    async with opened(port=port):
        assert (await asking).metadata == OURS


async def test_nobody_is_there(free: FreePorts) -> None:
    with pytest.raises(TransferTimeout, match="nobody can be reached") as caught:
        await ask_handshake(HOST, free.of("peer"), timeout=0.1)
    assert (caught.value.phase, caught.value.timeout) == ("handshake", 0.1)


async def test_it_never_answers(free: FreePorts) -> None:
    context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(f"tcp://{HOST}:{free.of('peer')}")
    try:
        with pytest.raises(TransferTimeout, match=r"within 0\.3 s"):
            await ask_handshake(HOST, free.of("peer"), timeout=0.3)
        asking = asyncio.ensure_future(ask_handshake(HOST, free.of("peer"), timeout=None))
        await router.recv_multipart()
        while True:
            identity, question = await router.recv_multipart()
            assert question == b"get_meta_msg"
            break
        for body in (b"\x01", b"\x80"):
            await router.send_multipart([identity, b"", body])
        with pytest.raises(ProtocolError, match="answers the handshake with something else"):
            await asking
        asking = asyncio.ensure_future(ask_handshake(HOST, free.of("peer"), timeout=None))
        await router.recv_multipart()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    finally:
        router.close()
        context.term()


async def test_a_port_that_is_taken() -> None:
    async with opened() as listening:
        with pytest.raises(UsageError, match=r"the handshake cannot be bound.*\(handshake_port\)"):
            await open_handshake_port(HOST, listening.where.port, OURS)
    with pytest.raises(ConfigError, match="host_ip: the handshake cannot listen at"):
        await open_handshake_port("192.0.2.77", 0, OURS)


def _traces() -> set[str]:
    found = {trace.name for trace in traces() if trace.kind in KINDS}
    return found - lookers(found)


async def test_nothing_is_left() -> None:
    async with opened() as listening:  # what a process makes once
        await ask_handshake(HOST, listening.where.port, timeout=10)
    before = _traces()
    async with opened() as listening:
        await ask_handshake(HOST, listening.where.port, timeout=10)
        with pytest.raises(UsageError):
            await open_handshake_port(HOST, listening.where.port, OURS)
        listening.close()
        listening.close()
    over = time.monotonic() + 3
    while left := _traces() - before:
        assert time.monotonic() < over, left
        await asyncio.sleep(0.01)  # libzmq closes in a thread of its own
