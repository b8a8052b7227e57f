"""The unmodified connector of vLLM-Omni 0.30 in another process, over Mooncake's engine and TCP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import omni_async
from omni_async.cli.free_ports import FreePorts
from omni_async.errors import KeyNotFound, PeerLost, TransferTimeout
from tests.engines import need_mooncake

if TYPE_CHECKING:
    from .child import Child

torch = pytest.importorskip("torch")

POOL = 512 << 20
KB, MB = 1 << 10, 1 << 20
SIZES = [4 * KB, 64 * KB, MB, 16 * MB, 64 * MB]
ON = {"protocol": "tcp", "host": "127.0.0.1"}


@pytest.fixture(scope="module")
def base_ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


@contextlib.contextmanager
def child(wheel: Path, role: str, port: int) -> Iterator[Child]:
    from .child import Child

    need_mooncake()
    made = Child("connector", str(wheel), role, port, POOL)
    try:
        made.call("health")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def their_receiver(omni_wheel: Path, base_ports: FreePorts) -> Iterator[Child]:
    """Is told by metadata where senders are."""
    with child(omni_wheel, "receiver", base_ports.of("nobody")) as made:
        yield made


@pytest.fixture(scope="module")
def their_sender(omni_wheel: Path, base_ports: FreePorts) -> Iterator[Child]:
    with child(omni_wheel, "sender", base_ports.of("theirs")) as made:
        yield made


@contextlib.asynccontextmanager
async def our_sender(namespace: str, port: int, **extra: Any) -> AsyncIterator[Any]:
    spec = {"name": "mooncake", "extra": {**ON, "zmq_port": port, **extra}}
    async with omni_async.open_transport(
        spec, role="sender", stage="0", namespace=namespace, linger=0
    ) as tx:
        yield tx


@contextlib.asynccontextmanager
async def our_receiver(namespace: str, port: int, **extra: Any) -> AsyncIterator[Any]:
    spec = {
        "name": "mooncake",
        "extra": {
            **ON, "peer": "vllm-omni", "sender_host": "127.0.0.1", "sender_zmq_port": port, **extra,
        },
    }  # fmt: skip
    async with omni_async.open_transport(
        spec, role="receiver", stage="1", namespace=namespace
    ) as rx:
        yield rx


async def until(true: Callable[[], bool]) -> None:
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


def address_of(receipt: Any) -> dict[str, Any]:
    return {name: receipt.metadata[name] for name in ("source_host", "source_port")}


def tensor(nbytes: int) -> Any:
    generator = torch.Generator().manual_seed(nbytes)
    return torch.randint(0, 255, (nbytes,), dtype=torch.uint8, generator=generator).view(
        torch.bfloat16
    )


def payload(nbytes: int) -> dict[str, Any]:
    return {
        "request_id": "r-1",
        "hidden_states": {"output": tensor(nbytes), "layers": {0: tensor(512), 24: tensor(1024)}},
        "codes": {"audio": list(range(400))},
        "meta": {"finished": torch.tensor(True), "left_context_size": 25, "speaker": None},
        "wave": np.linspace(-1, 1, 480, dtype=np.float32),
        "raw": b"\0\1" * 50,
    }


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(
            one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
        )
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)


# --- our sender, their receiver -------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("peer", ["omni-async", "vllm-omni"])
async def test_their_receiver_fetches_what_ours_has_put(
    namespace: str, port: int, their_receiver: Child, peer: str, nbytes: int
) -> None:
    async with our_sender(namespace, port, peer=peer) as tx:
        raw = tensor(nbytes)
        receipt = await tx.put("0", "1", "tensor", raw)
        told = (receipt.metadata, address_of(receipt))
        for metadata in told:
            data, size = await their_receiver.ask("get", "tensor", metadata)
            assert size == nbytes
            assert data == raw.view(torch.uint8).numpy().tobytes()
            await tx.put("0", "1", "tensor", raw)
        data = raw.view(torch.uint8).numpy().tobytes()
        receipt = await tx.put("0", "1", "bytes", data)
        assert await their_receiver.ask("get", "bytes", receipt.metadata) == (data, nbytes)
        value = payload(nbytes)
        receipt = await tx.put("0", "1", "object", value)
        # Only a sender to vLLM-Omni knows the size of the object before it is asked.
        metadata = receipt.metadata if peer == "vllm-omni" else address_of(receipt)
        found, size = await their_receiver.ask("get", "object", metadata)
        assert equal(found, value)
        if peer == "vllm-omni":
            assert size == receipt.nbytes
        assert await their_receiver.ask("get", "object", address_of(receipt)) is None
        await tx.cleanup("tensor")
        await until(lambda: not tx.health().pool_used)
        assert await their_receiver.ask("free") == POOL


async def test_their_receiver_polls_while_ours_puts(
    namespace: str, port: int, their_receiver: Child
) -> None:
    async with our_sender(namespace, port) as tx:
        where = {"source_host": "127.0.0.1", "source_port": port}
        for i in range(20):
            polling = asyncio.ensure_future(their_receiver.ask("poll", f"k{i}", where))
            await asyncio.sleep(0.003 * (i % 4))
            await tx.put("0", "1", f"k{i}", {"i": i, "t": torch.full((5000,), i)})
            found, _ = await polling
            assert equal(found, {"i": i, "t": torch.full((5000,), i)})
        await until(lambda: not tx.health().pool_used)


async def test_many_at_once_in_both_directions(
    namespace: str,
    port: int,
    base_ports: FreePorts,
    their_sender: Child,
    their_receiver: Child,
) -> None:
    async with (
        our_sender(namespace, port) as tx,
        our_receiver(namespace, base_ports.of("theirs")) as rx,
    ):
        keys = [f"many{i}" for i in range(64)]
        where = {"source_host": "127.0.0.1", "source_port": port}
        polling = asyncio.ensure_future(their_receiver.ask("poll_many", keys, where))
        gets = [asyncio.ensure_future(rx.get("0", "1", key, timeout=30)) for key in keys]
        for i, key in enumerate(keys):
            value = {"i": i, "t": torch.full((1 << (6 + i % 12),), i)}
            await tx.put("0", "1", key, value)
            await their_sender.ask("put", key, value)
        for i, ((theirs, _), getting) in enumerate(zip(await polling, gets, strict=True)):
            value = {"i": i, "t": torch.full((1 << (6 + i % 12),), i)}
            assert equal(theirs, value)
            delivery = await getting
            assert equal(delivery.value, value)
            delivery.release()
        await until(lambda: not tx.health().pool_used)


async def test_ours_and_theirs_fetch_from_one_sender(
    namespace: str, port: int, their_receiver: Child
) -> None:
    spec = {
        "name": "mooncake",
        "extra": {**ON, "sender_host": "127.0.0.1", "sender_zmq_port": port},
    }
    async with (
        our_sender(namespace, port) as tx,
        omni_async.open_transport(spec, role="receiver", stage="1", namespace=namespace) as rx,
    ):
        value = payload(MB)
        for i in range(10):
            receipt = await tx.put("0", "1", f"a{i}", value)
            await tx.put("0", "1", f"b{i}", value)
            mine, yours = await asyncio.gather(
                rx.get("0", "1", f"b{i}", timeout=10),
                their_receiver.ask("poll", f"a{i}", address_of(receipt)),
            )
            assert equal(mine.value, value)
            assert equal(yours[0], value)
            mine.release()
        await until(lambda: not tx.health().pool_used)


async def test_their_receiver_is_killed_and_another_one_comes(
    namespace: str, port: int, omni_wheel: Path
) -> None:
    async with our_sender(namespace, port, peer="vllm-omni") as tx:
        value = payload(64 * MB)
        receipt = await tx.put("0", "1", "k", value)
        with child(omni_wheel, "receiver", port) as first:
            small = await tx.put("0", "1", "small", b"x")  # then the engines know each other
            assert await first.ask("get", "small", small.metadata) == (b"x", 1)
            getting = asyncio.ensure_future(first.ask("get", "k", receipt.metadata))
            await until(lambda: tx.health().in_flight == 1)
            first.kill()
            with contextlib.suppress(EOFError):
                await getting
        await until(lambda: not tx.health().in_flight)
        with child(omni_wheel, "receiver", port) as second:
            if await second.ask("get", "k", receipt.metadata) is None:
                # It was all written before the kill.
                assert not tx.health().pool_used
                receipt = await tx.put("0", "1", "k", value)
                assert equal((await second.ask("get", "k", receipt.metadata))[0], value)
        await until(lambda: not tx.health().pool_used)


# --- their sender, our receiver -------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", SIZES)
async def test_ours_gets_what_their_sender_has_put(
    namespace: str, base_ports: FreePorts, their_sender: Child, nbytes: int
) -> None:
    async with our_receiver(namespace, base_ports.of("theirs")) as rx:
        raw = tensor(nbytes)
        data = raw.view(torch.uint8).numpy().tobytes()
        value = payload(nbytes)
        for told in ("whole", "address", "nothing"):
            for kind, sent in (("tensor", raw), ("bytes", data), ("object", value)):
                fine, size, whole = await their_sender.ask("put", f"{kind}-{told}", sent)
                assert fine
                metadata = whole
                if told == "address":
                    metadata = {name: whole[name] for name in ("source_host", "source_port")}
                elif told == "nothing":
                    metadata = None
                delivery = await rx.get("0", "1", f"{kind}-{told}", metadata, timeout=30)
                assert delivery.nbytes == size
                if kind == "object":
                    assert equal(delivery.value, value)
                else:
                    assert equal(delivery.value.view(torch.bfloat16), raw)
                assert await their_sender.ask("waiting") == 0
                del delivery
        await until(lambda: not rx.health().pool_used)
        assert await their_sender.ask("free") == POOL
        assert rx.health().errors == rx.health().quarantined == 0


async def test_ours_waits_for_their_sender(
    namespace: str, base_ports: FreePorts, their_sender: Child
) -> None:
    async with our_receiver(namespace, base_ports.of("theirs")) as rx:
        gets = [asyncio.ensure_future(rx.get("0", "1", f"later{i}", timeout=30)) for i in range(50)]
        await until(lambda: rx.health().parked == 50)
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "later0", timeout=0)
        for i in range(50):
            await their_sender.ask("put", f"later{i}", {"i": i, "t": torch.full((9000,), i)})
        for i in range(50):
            value = (await gets[i]).value
            assert equal(value, {"i": i, "t": torch.full((9000,), i)})
            value.clear()
        gets.clear()
        await until(lambda: not rx.health().pool_used)


async def test_their_sender_is_killed_and_comes_back(
    namespace: str, port: int, omni_wheel: Path
) -> None:
    async with our_receiver(namespace, port, peer_timeout=2) as rx:
        with child(omni_wheel, "sender", port) as first:
            await first.ask("put", "k", payload(64 * MB))
            getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=10))
            waiting = asyncio.ensure_future(rx.get("0", "1", "later", timeout=30))
            await until(lambda: rx.health().in_flight == 1)
            first.kill()
            with contextlib.suppress(PeerLost):
                await getting  # it may have been written before
            del getting
        await until(lambda: not rx.health().pool_used)
        assert rx.health().quarantined == 0
        with pytest.raises(TransferTimeout, match="nobody can be reached"):
            await rx.get("0", "1", "k", timeout=0.2)
        with child(omni_wheel, "sender", port) as second:
            await second.ask("put", "later", payload(MB))
            assert equal((await waiting).value, payload(MB))


async def test_cancelled_gets_lose_nothing(
    namespace: str, base_ports: FreePorts, their_sender: Child
) -> None:
    async with our_receiver(namespace, base_ports.of("theirs")) as rx:
        value = payload(16 * MB)
        for i in range(12):
            await their_sender.ask("put", "k", value)
            getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=10))
            await asyncio.sleep(0.002 * i)
            getting.cancel()
            await asyncio.wait([getting])
            if getting.cancelled():
                delivery = await rx.get("0", "1", "k", timeout=10)
            else:
                delivery = getting.result()
            assert equal(delivery.value, value)
            del delivery, getting
        await until(lambda: not rx.health().pool_used)
        assert await their_sender.ask("free") == POOL


# --- a pipeline -----------------------------------------------------------------------------------


async def test_a_deployment_is_moved_stage_by_stage(namespace: str, omni_wheel: Path) -> None:
    """theirs → ours → theirs, wired by one deploy file, at the ports that both compute of it."""
    base = consecutive_ports(2)
    wire = {
        "name": "MooncakeTransferEngineConnector",
        "extra": {**ON, "zmq_port": base, "peer": "vllm-omni"},
    }
    deploy = omni_async.load_deploy(
        {
            "connectors": {"wire": wire},
            "stages": [
                {"stage_id": 0, "output_connectors": {"to_stage_1": "wire"}},
                {
                    "stage_id": 1,
                    "input_connectors": {"from_stage_0": "wire"},
                    "output_connectors": {"to_stage_2": "wire"},
                },
                {"stage_id": 2, "input_connectors": {"from_stage_1": "wire"}},
            ],
        }
    )
    with (
        child(omni_wheel, "sender", base) as zero,
        child(omni_wheel, "receiver", base + 1) as two,
    ):
        async with omni_async.open_stage(deploy, 1, namespace=namespace) as stage:
            value = payload(MB)
            for i in range(5):
                key = f"r{i}_0_0"
                await zero.ask("put", key, value, ("0", "1"))
                with await stage.input("0").get(key, timeout=10) as item:
                    # What came in goes out as it came, and they find it without being told.
                    await stage.output("2").put(f"r{i}_1_0", item.value)
                found, _ = await two.ask("poll", f"r{i}_1_0", None, ("1", "2"))
                assert equal(found, value)
            for transport in stage.transports.values():
                await until(lambda transport=transport: not transport.health().pool_used)  # type: ignore[misc]


def consecutive_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    with FreePorts() as kept:
        for attempt in range(100):
            first = kept.of(attempt)
            with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
                for port in range(first + 1, first + count):
                    probe = probes.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
                return first
    raise RuntimeError("no free ports in a row")
