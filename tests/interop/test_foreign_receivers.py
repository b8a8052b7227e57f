"""Our sender serves receivers of vLLM-Omni beside its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.errors import EncodeError, KeyExists, KeyNotFound, UsageError
from omni_async.interop.vllm_omni.reading import read
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from omni_async.transport.foreign import forms as foreign_forms

from .double import SessionDouble
from .receiver import Receiver, receiver

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("session_double")


@contextlib.asynccontextmanager
async def sender(namespace: str, port: int, **extra: Any) -> AsyncIterator[omni_async.Transport]:
    spec = {"name": SessionDouble.name, "extra": {"zmq_port": port, **extra}}
    async with omni_async.open_transport(
        spec, role="sender", stage="0", namespace=namespace, linger=0
    ) as tx:
        yield tx
    assert tx.health().in_flight == 0


@contextlib.asynccontextmanager
async def ours(namespace: str, port: int) -> AsyncIterator[omni_async.Transport]:
    spec = {
        "name": SessionDouble.name,
        "extra": {"sender_host": "127.0.0.1", "sender_zmq_port": port},
    }
    async with omni_async.open_transport(
        spec, role="receiver", stage="1", namespace=namespace
    ) as rx:
        yield rx


def object_in(theirs: Receiver, nbytes: int, at: int = 0) -> Any:
    copy = np.frombuffer(bytearray(theirs.landed(nbytes + 4, at)), np.uint8)
    return read(copy, nbytes)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


async def unused(tx: omni_async.Transport) -> bool:
    """Whether all memory comes back."""

    def nothing() -> bool:
        health = tx.health()
        return health.pool_used == health.in_flight == health.quarantined == 0

    await until(nothing)
    return True


RAW = [
    torch.arange(1024, dtype=torch.float32),
    torch.arange(24).reshape(4, 6).t(),
    torch.tensor(2.5),
    b"some bytes",
    b"x" * 100_000,
    torch.arange(20 << 20, dtype=torch.uint8),
]


@pytest.mark.parametrize("peer", ["omni-async", "vllm-omni"])
@pytest.mark.parametrize("value", RAW)
async def test_tensors_and_bytes_are_raw(namespace: str, port: int, peer: str, value: Any) -> None:
    raw = value if isinstance(value, bytes) else value.contiguous().numpy().tobytes()
    async with sender(namespace, port, peer=peer) as tx:
        receipt = await tx.put("0", "1", "k", value)
        assert receipt.metadata == {
            "source_host": "127.0.0.1",
            "source_port": port,
            "data_size": len(raw),
            "is_fast_path": True,
        }
        with receiver(port) as theirs:
            found = await theirs.query("k@0_1")
            assert found == {"request_id": "k@0_1", "data_size": len(raw), "is_fast_path": True}
            assert await theirs.pull("k@0_1", len(raw), 4096) == b"trans_done"
            assert theirs.landed(len(raw), 4096) == raw
            assert await theirs.query("k@0_1") is None
        assert await unused(tx)


OBJECTS: list[Any] = [
    {"a": 1, "t": torch.arange(6).reshape(2, 3)},
    {"big": torch.arange(3 << 20, dtype=torch.int64), "l": [1, (2, None)], "s": {"x"}},
    None,
    [],
    "text",
    np.arange(5.0),
]


@pytest.mark.parametrize("peer", ["omni-async", "vllm-omni"])
@pytest.mark.parametrize("value", OBJECTS)
async def test_everything_else_is_an_object(
    namespace: str, port: int, peer: str, value: Any
) -> None:
    async with sender(namespace, port, peer=peer) as tx:
        receipt = await tx.put("0", "1", "k", value)
        with receiver(port) as theirs:
            found = await theirs.query("k@0_1")
            assert found is not None
            assert found["is_fast_path"] is False
            nbytes = found["data_size"]
            if peer == "vllm-omni":  # then they need not ask
                assert receipt.nbytes == nbytes
                assert receipt.metadata is not None
                assert receipt.metadata["data_size"] == nbytes
                assert receipt.metadata["is_fast_path"] is False
            assert await theirs.pull("k@0_1", nbytes) == b"trans_done"
            landed = object_in(theirs, nbytes)
        assert await unused(tx)
    if isinstance(value, dict):
        for name, part in value.items():
            if isinstance(part, torch.Tensor):
                assert torch.equal(landed.pop(name), part)
        assert landed in ({"a": 1}, {"l": [1, [2, None]], "s": ["x"]})
    elif isinstance(value, np.ndarray):
        assert landed.tolist() == value.tolist()
    else:
        assert landed == value


async def test_nothing_is_there(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        with receiver(port) as theirs:
            assert await theirs.query("k@0_1") is None
            assert await theirs.pull("k@0_1", 10) == b"trans_error"
            await tx.put("0", "1", "k", b"x")
            for other in ("k@0_2", "k@1_1", "kk@0_1", "k", "k@0", "@0_1"):
                assert await theirs.query(other) is None
                assert await theirs.pull(other, 10) == b"trans_error"
            assert await tx.cleanup("k") == 1
            assert await theirs.query("k@0_1") is None
            assert await theirs.pull("k@0_1", 10) == b"trans_error"
        assert await unused(tx)


async def test_what_has_expired_is_not_there(namespace: str, port: int) -> None:
    async with sender(namespace, port, buffer_ttl_seconds=0.05) as tx:
        await tx.put("0", "1", "k", b"x")
        with receiver(port) as theirs:
            assert await theirs.query("k@0_1") is not None
            assert await unused(tx)
            assert await theirs.query("k@0_1") is None


async def test_in_another_length_nothing_is_written(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        await tx.put("0", "1", "k", b"secret" * 100)
        with receiver(port) as theirs:
            for wrong in (599, 601, 1, 1 << 40):
                assert await theirs.pull("k@0_1", wrong) == b"trans_error"
            assert theirs.landed(700) == bytes(700)
            assert await theirs.pull("k@0_1", 600, 8192) == b"trans_done"
            assert theirs.landed(600, 8192) == b"secret" * 100
            assert theirs.landed(700) == bytes(700)


async def test_metadata_of_our_own_wire_has_another_length(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        receipt = await tx.put("0", "1", "k", {"a": list(range(1000, 1100))})
        assert receipt.metadata is not None
        with receiver(port) as theirs:
            nbytes = receipt.metadata["data_size"]
            found = await theirs.query("k@0_1")
            assert found is not None
            assert found["data_size"] != nbytes
            assert await theirs.pull("k@0_1", nbytes) == b"trans_error"
            assert await theirs.pull("k@0_1", found["data_size"]) == b"trans_done"


async def test_a_second_pull_of_a_key_finds_nothing(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        await tx.put("0", "1", "k", b"x" * 1_000_000)
        with receiver(port) as theirs:
            FAULTS.order(Fault("stuck"))
            first = asyncio.ensure_future(theirs.pull("k@0_1", 1_000_000))
            await FAULTS.until_stuck()
            other = theirs.socket()
            assert await theirs.pull("k@0_1", 1_000_000, 8 << 20, other) == b"trans_error"
            assert await theirs.query("k@0_1", other) is None
            FAULTS.release()
            assert await first == b"trans_done"
            assert theirs.landed(10, 8 << 20) == bytes(10)
        assert await unused(tx)


async def test_a_stuck_write_holds_up_nobody(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx, ours(namespace, port) as rx:
        await tx.put("0", "1", "stuck", b"x" * 1_000_000)
        await tx.put("0", "1", "other", b"y" * 1_000_000)
        await tx.put("0", "1", "mine", b"z" * 1_000_000)
        with receiver(port) as theirs, receiver(port) as others:
            FAULTS.order(Fault("stuck", landed=0.5))
            first = asyncio.ensure_future(theirs.pull("stuck@0_1", 1_000_000))
            await FAULTS.until_stuck()
            assert await others.query("other@0_1") is not None
            assert await others.pull("other@0_1", 1_000_000) == b"trans_done"
            delivery = await rx.get("0", "1", "mine", timeout=5)
            assert bytes(delivery.value) == b"z" * 1_000_000
            await until(lambda: tx.health().in_flight == 1)  # ours says so a little later
            FAULTS.release()
            assert await first == b"trans_done"
            assert theirs.landed(1_000_000) == b"x" * 1_000_000


async def test_what_is_being_written_is_not_replaced_or_freed(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        await tx.put("0", "1", "k", {"old": torch.zeros(1 << 20, dtype=torch.uint8)})
        with receiver(port) as theirs:
            found = await theirs.query("k@0_1")
            assert found is not None
            nbytes = found["data_size"]
            FAULTS.order(Fault("stuck", landed=0.5))
            pulling = asyncio.ensure_future(theirs.pull("k@0_1", nbytes))
            await FAULTS.until_stuck()
            with pytest.raises(KeyExists):
                await tx.put("0", "1", "k", b"new")
            assert await tx.cleanup("k") == 1
            await tx.put("0", "1", "k", b"new")
            fill = [await tx.put("0", "1", f"fill{i}", b"\xff" * (1 << 20)) for i in range(8)]
            assert len(fill) == 8
            FAULTS.release()
            assert await pulling == b"trans_done"
            assert not object_in(theirs, nbytes)["old"].any()
            assert await theirs.pull("k@0_1", 3) == b"trans_done"
            assert theirs.landed(3) == b"new"
            for i in range(8):
                await tx.cleanup(f"fill{i}")
        assert await unused(tx)


async def test_a_failed_write_leaves_it_on_offer(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        for value, nbytes in ((b"x" * 50_000, 50_000), ({"t": torch.ones(9000)}, None)):
            await tx.put("0", "1", "k", value)
            with receiver(port) as theirs:
                found = await theirs.query("k@0_1")
                assert found is not None
                nbytes = found["data_size"]
                FAULTS.order(Fault("failing", status=-1))
                assert await theirs.pull("k@0_1", nbytes) == b"trans_error"
                assert await theirs.query("k@0_1") == found
                assert tx.health().in_flight == 0
                assert await theirs.pull("k@0_1", nbytes) == b"trans_done"
        assert await unused(tx)


async def test_a_receiver_that_is_gone(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        await tx.put("0", "1", "k", b"x" * 1_000_000)
        with receiver(port) as theirs:
            word = theirs.pull_word("k@0_1", 1_000_000)
            nobody = theirs.pull_word("k@0_1", 1_000_000, remote_port=9)
        with receiver(port) as other:
            assert await other.ask(word) == b"trans_error"
            assert await other.ask(nobody) == b"trans_error"
            assert await other.pull("k@0_1", 1_000_000) == b"trans_done"
        assert await unused(tx)


async def test_a_receiver_dies_in_the_middle(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        await tx.put("0", "1", "k", {"t": torch.ones(1 << 20)})
        with receiver(port) as theirs:
            found = await theirs.query("k@0_1")
            assert found is not None
            FAULTS.order(Fault("stuck", landed=0.5))
            pulling = asyncio.ensure_future(theirs.pull("k@0_1", found["data_size"]))
            await FAULTS.until_stuck()
            pulling.cancel()
            await asyncio.wait([pulling])
        FAULTS.release()  # its memory is not registered any more
        await until(lambda: not tx.health().in_flight)
        with receiver(port) as other:
            found = await other.query("k@0_1")
            assert found is not None
            assert await other.pull("k@0_1", found["data_size"]) == b"trans_done"
            assert object_in(other, found["data_size"])["t"].sum() == 1 << 20
        assert await unused(tx)


async def test_ours_and_theirs_share_a_sender(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx, ours(namespace, port) as rx:
        parked = asyncio.ensure_future(rx.get("0", "1", "parked", timeout=5))
        await asyncio.sleep(0.05)
        with receiver(port) as theirs:
            await tx.put("0", "1", "parked", {"a": 1})
            assert (await parked).value == {"a": 1}
            # What is put is offered to our receiver before it asks: it gives it back.
            await tx.put("0", "1", "k", b"x" * 1000)
            assert await theirs.query("k@0_1") is not None
            assert await theirs.pull("k@0_1", 1000) == b"trans_done"
            with pytest.raises(KeyNotFound):
                await rx.get("0", "1", "k", timeout=0)
            await tx.put("0", "1", "mine", b"y")
            assert (await rx.get("0", "1", "mine", timeout=5)).value == b"y"
            await until(lambda: not tx.health().pool_used)  # ours says so a little later
            assert await theirs.query("mine@0_1") is None
        assert await unused(tx)


async def test_several_consumers(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        await tx.put("0", "1", "k", {"t": torch.ones(5000)}, consumers=3)
        with receiver(port) as one, receiver(port) as two:
            for theirs in (one, two, one):
                found = await theirs.query("k@0_1")
                assert found is not None
                assert await theirs.pull("k@0_1", found["data_size"]) == b"trans_done"
                assert object_in(theirs, found["data_size"])["t"].sum() == 5000
            assert await one.query("k@0_1") is None
        assert await unused(tx)


async def test_what_cannot_be_told_is_refused_by_put(namespace: str, port: int) -> None:
    async with sender(namespace, port, peer="vllm-omni") as tx:
        for value in ({"a": 1 << 70}, {"a": {"__tensor__": True}}, b"", torch.empty(0)):
            with pytest.raises(EncodeError) as caught:
                await tx.put("0", "1", "k", value)
            assert caught.value.path
        assert tx.health().puts == 0
        assert await unused(tx)


async def test_what_cannot_be_told_is_not_there_for_them(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx, ours(namespace, port) as rx:
        for value in ({"a": 1 << 70}, b"", torch.empty(0), {1j: 2}):
            await tx.put("0", "1", "k", value)
            with receiver(port) as theirs:
                for _ in range(3):  # and it is not tried each time
                    assert await theirs.query("k@0_1") is None
                assert await theirs.pull("k@0_1", 100) == b"trans_error"
            await rx.get("0", "1", "k", timeout=5)
        assert await unused(tx)


async def test_a_form_waits_for_room(
    namespace: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of our own wire needs room twice; raw payloads and a sender to theirs do not."""
    monkeypatch.setattr(foreign_forms, "ROOM_SECONDS", 0.3)
    limit = 4 << 20
    async with sender(namespace, port, memory_pool_size=limit) as tx:
        await tx.put("0", "1", "k", {"t": torch.ones(3 << 20, dtype=torch.uint8)})
        await tx.put("0", "1", "raw", b"x" * 500_000)
        with receiver(port) as theirs:
            asking = asyncio.ensure_future(theirs.query("k@0_1"))
            other = theirs.socket()
            assert await theirs.pull("raw@0_1", 500_000, 0, other) == b"trans_done"
            assert await asking is None
            await tx.cleanup("k")
            await tx.put("0", "1", "k", {"t": torch.ones(1 << 20, dtype=torch.uint8)})
            assert await theirs.query("k@0_1") is not None
    async with sender(namespace, port, memory_pool_size=limit, peer="vllm-omni") as tx:
        receipt = await tx.put("0", "1", "k", {"t": torch.ones(3 << 20, dtype=torch.uint8)})
        with receiver(port) as theirs:
            assert await theirs.pull("k@0_1", receipt.nbytes) == b"trans_done"


async def test_many_at_once(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        with receiver(port) as theirs:
            for i in range(200):
                await tx.put("0", "1", f"k{i}", {"i": i, "t": torch.full((2000,), i)})

            async def fetch(i: int) -> None:
                socket = theirs.socket()
                found = await theirs.query(f"k{i}@0_1", socket)
                assert found is not None
                at = i << 16
                assert (
                    await theirs.pull(f"k{i}@0_1", found["data_size"], at, socket) == b"trans_done"
                )
                landed = object_in(theirs, found["data_size"], at)
                assert landed["i"] == i
                assert (landed["t"] == i).all()

            await asyncio.gather(*map(fetch, range(200)))
        assert await unused(tx)


async def test_malformed_requests_are_answered(namespace: str, port: int) -> None:
    async with sender(namespace, port) as tx:
        await tx.put("0", "1", "k", b"x" * 100)
        with receiver(port) as theirs:
            for junk in (b"", b"\0", b"query_info", b"query_infoxyz", b"\x80", b"x" * 100_000):
                expected = b"info_not_found" if junk.startswith(b"query_info") else b"trans_error"
                assert await theirs.ask(junk) == expected
            wrong: list[dict[str, Any]] = [
                {"lengths": [99]}, {"dst_addrs": [0]}, {"dst_addrs": [1, 2]}, {"remote_port": 0},
                {"remote_hostname": "é"}, {"dst_addrs": [(1 << 64) - 50]},
            ]  # fmt: skip
            for parts in wrong:
                assert await theirs.pull("k@0_1", 100, **parts) == b"trans_error"
            assert await theirs.pull("k@0_1", 100) == b"trans_done"
        assert await unused(tx)


async def test_closing_waits_for_a_write(namespace: str, port: int) -> None:
    with receiver(port) as theirs:
        async with sender(namespace, port) as tx:
            await tx.put("0", "1", "k", b"x" * 1_000_000)
            await tx.put("0", "1", "other", b"y")
            FAULTS.order(Fault("stuck", landed=0.5))
            pulling = asyncio.ensure_future(theirs.pull("k@0_1", 1_000_000))
            await FAULTS.until_stuck()
            closing = asyncio.ensure_future(tx.aclose())
            await asyncio.sleep(0.05)
            assert not closing.done()
            FAULTS.release()
            await closing
        assert theirs.landed(1_000_000) == b"x" * 1_000_000
        pulling.cancel()
        await asyncio.wait([pulling])


async def test_streams_are_refused(namespace: str, port: int) -> None:
    async with sender(namespace, port, peer="vllm-omni") as tx:
        with pytest.raises(UsageError, match="has no streams"):
            tx.edge("0", "1").stream("s")
