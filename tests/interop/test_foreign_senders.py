"""Our receiver pulls from senders of vLLM-Omni."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.errors import (
    ClosedError,
    ConfigError,
    DecodeError,
    EngineFault,
    KeyNotFound,
    PayloadTooLarge,
    PeerLost,
    ProtocolError,
    TransferCancelled,
    TransferTimeout,
    UsageError,
)
from omni_async.interop.vllm_omni import reading
from omni_async.interop.vllm_omni.writing import write
from omni_async.pool import ManagedBuffer, Pool
from omni_async.rendezvous.zmq_request import ZmqRequests
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from omni_async.transport.foreign import sender as foreign_sender
from omni_async.transport.foreign import taking as foreign_taking

from .double import SessionDouble
from .sender import sender

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("session_double")


@contextlib.asynccontextmanager
async def receiver(namespace: str, port: int, **extra: Any) -> AsyncIterator[omni_async.Transport]:
    spec = {
        "name": SessionDouble.name,
        "extra": {
            "peer": "vllm-omni",
            "sender_host": "127.0.0.1",
            "sender_zmq_port": port,
            **extra,
        },
    }
    async with omni_async.open_transport(
        spec, role="receiver", stage="1", namespace=namespace
    ) as rx:
        yield rx
    assert rx.health().in_flight == rx.health().parked == 0
    assert rx.health().quarantined == 0


async def until(true: Callable[[], bool]) -> None:
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


async def unused(rx: omni_async.Transport) -> None:
    """All memory comes back."""
    await until(lambda: not (rx.health().pool_used or rx.health().in_flight))
    assert rx.health().quarantined == 0


def object_of(value: Any) -> bytes:
    pieces = write(value)
    data = bytearray(pieces.nbytes)
    pieces.copy_into(memoryview(data))
    return bytes(data)


SIZES = [1, 4096, 100_000, 20 << 20]


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("told", ["whole", "address", "nothing"])
async def test_raw_bytes(namespace: str, port: int, nbytes: int, told: str) -> None:
    data = np.arange(nbytes, dtype=np.uint8).tobytes()
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        whole = theirs.put("k@0_1", data)
        metadata = {
            "whole": whole,
            "address": {name: whole[name] for name in ("source_host", "source_port")},
            "nothing": None,
        }[told]
        delivery = await rx.get("0", "1", "k", metadata)
        assert delivery.nbytes == nbytes
        assert isinstance(delivery.value, torch.Tensor)
        assert delivery.value.dtype is torch.uint8
        assert delivery.value.data_ptr() % 64 == 0
        assert delivery.value.numpy().tobytes() == data
        assert theirs.payloads == {}
        del delivery
        await unused(rx)
        health = rx.health()
        assert (health.gets, health.bytes_transferred, health.errors) == (1, nbytes, 0)


VALUE: Any = {
    "request_id": "r",
    "hidden_states": {"output": torch.randn(300, 1024).to(torch.bfloat16)},
    "codes": [1, 2, 3],
    "meta": {"finished": torch.tensor(True)},
}


@pytest.mark.parametrize("prefix", [b"", b"\0", b"\xc1"])
async def test_objects(namespace: str, port: int, prefix: bytes) -> None:
    data = object_of(VALUE)
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.prefix = prefix
        wishes: list[dict[str, Any]] = [{}, {"copy": True}, {"device": "cpu"}]
        for options in wishes:
            theirs.put("k@0_1", data, fast=False)
            delivery = await rx.get("0", "1", "k", **options)
            assert delivery.nbytes == len(data)
            value = delivery.value
            assert list(value) == list(VALUE)
            sent = VALUE["hidden_states"]["output"]
            assert torch.equal(value["hidden_states"]["output"], sent)
            assert value["hidden_states"]["output"].data_ptr() % 64 == 0
            assert value["codes"] == [1, 2, 3]
            assert value["meta"]["finished"].item() is True
            if "copy" in options:
                await unused(rx)
            del delivery, value
            await unused(rx)


async def test_raw_and_copies(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        for copy in (None, True):
            theirs.put("fast@0_1", b"x" * 5000)
            theirs.put("slow@0_1", object_of({"a": 1}), fast=False)
            fast = await rx.get("0", "1", "fast", raw=True, copy=copy)
            slow = await rx.get("0", "1", "slow", raw=True, copy=copy)
            assert isinstance(fast.value, ManagedBuffer)
            assert fast.value.to_bytes() == b"x" * 5000
            assert slow.value.to_bytes() == object_of({"a": 1})
            if copy:
                await unused(rx)
            fast.release()
            slow.release()
            await unused(rx)
        theirs.put("k@0_1", np.arange(12, dtype=np.float32).tobytes())
        buffer = (await rx.get("0", "1", "k", raw=True)).value
        assert buffer.as_tensor(torch.float32, (3, 4))[2, 3] == 11


async def test_the_sender_comes_later(namespace: str, port: int) -> None:
    async with receiver(namespace, port) as rx:
        getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
        await until(lambda: rx.health().parked == 1)
        await asyncio.sleep(0.1)
        async with sender(port) as theirs:
            await until(lambda: theirs.heard["query"] > 1)
            theirs.put("k@0_1", b"late")
            assert (await getting).value.numpy().tobytes() == b"late"


async def test_many_wait_and_few_are_asked_at_a_time(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        gets = [asyncio.ensure_future(rx.get("0", "1", f"k{i}", timeout=30)) for i in range(300)]
        await until(lambda: len(theirs.queried) == 300)
        assert rx.health().parked == 300
        for i in reversed(range(300)):
            theirs.put(f"k{i}@0_1", b"%d" % i)
        for i in range(300):
            assert (await gets[i]).value.numpy().tobytes() == b"%d" % i
        gets.clear()
        await unused(rx)
        assert theirs.heard["pull"] == 300


async def test_a_key_is_asked_for_less_often_in_time(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        with pytest.raises(TransferTimeout) as caught:
            await rx.get("0", "1", "k", timeout=1)
        assert 10 < theirs.heard["query"] < 100
        assert caught.value.phase == "waiting for an offer"
        assert (caught.value.key, caught.value.edge) == ("k", ("0", "1"))
        assert caught.value.peer == f"tcp://127.0.0.1:{port}"
        assert rx.health().timeouts == 1
        asked = theirs.heard["query"]
        await asyncio.sleep(0.2)
        assert theirs.heard["query"] <= asked + 1  # one was under way; nobody waits any more


async def test_now_or_never(namespace: str, port: int) -> None:
    async with receiver(namespace, port) as rx:
        with pytest.raises(KeyNotFound, match="no sender answers at"):
            await rx.get("0", "1", "k", timeout=0)
        async with sender(port) as theirs:
            with pytest.raises(KeyNotFound, match="not there now"):
                await rx.get("0", "1", "k", timeout=0)
            assert theirs.heard["query"] == 1
            theirs.put("k@0_1", b"x")
            assert (await rx.get("0", "1", "k", timeout=0)).nbytes == 1
        async with sender(port) as theirs:  # it was restarted
            theirs.put("k@0_1", b"new")
            assert (await rx.get("0", "1", "k", timeout=0)).nbytes == 3
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "k", timeout=0)
        assert rx.health().errors == 0


async def test_two_gets_of_one_key(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        gets = [asyncio.ensure_future(rx.get("0", "1", "k", timeout=10)) for _ in range(2)]
        await until(lambda: theirs.heard["query"] > 0)
        theirs.put("k@0_1", b"one")
        done, pending = await asyncio.wait(gets, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        theirs.put("k@0_1", b"two")
        assert {g.result().value.numpy().tobytes() for g in done} == {b"one"}
        for getting in pending:
            assert (await getting).value.numpy().tobytes() == b"two"


async def test_somebody_else_was_faster(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        metadata = theirs.put("k@0_1", b"x" * 100)
        theirs.begin.clear()
        getting = asyncio.ensure_future(rx.get("0", "1", "k", metadata, timeout=10))
        await theirs.pulled.wait()
        del theirs.payloads["k@0_1"]
        theirs.begin.set()
        await until(lambda: rx.health().parked == 1)  # it goes on waiting
        theirs.put("k@0_1", b"y" * 7)
        assert (await getting).value.numpy().tobytes() == b"y" * 7


async def test_a_payload_that_grew(namespace: str, port: int) -> None:
    """Lengths come from the sender, not from metadata: it writes what it has."""
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        old = theirs.put("k@0_1", b"x" * 10)
        theirs.put("k@0_1", b"y" * 100_000)
        assert (await rx.get("0", "1", "k", old)).nbytes == 100_000


async def test_a_failed_write(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.put("k@0_1", b"x" * 100_000)
        FAULTS.order(Fault("failing", landed=0.5))
        with pytest.raises(EngineFault, match="could not write 100000 bytes"):
            await rx.get("0", "1", "k", timeout=5)
        await unused(rx)
        assert (await rx.get("0", "1", "k", timeout=5)).nbytes == 100_000
        assert rx.health().errors == 1


async def test_the_sender_dies_during_a_write(namespace: str, port: int) -> None:
    async with receiver(namespace, port) as rx:
        async with sender(port) as theirs:
            theirs.put("k@0_1", b"x" * 1_000_000)
            FAULTS.order(Fault("stuck", landed=0.5))
            getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
            await FAULTS.until_stuck()
            await theirs.die()
            with pytest.raises(PeerLost, match="went away"):
                await getting
            await unused(rx)
        async with sender(port) as theirs:
            theirs.put("k@0_1", b"again")
            assert (await rx.get("0", "1", "k", timeout=5)).nbytes == 5


async def test_a_late_write_lands_in_no_other_payload(namespace: str, port: int) -> None:
    limit = 1 << 20
    async with sender(port) as theirs, receiver(namespace, port, memory_pool_size=limit) as rx:
        theirs.put("late@0_1", b"\xaa" * (limit // 2))
        FAULTS.order(Fault("stuck", landed=0.0))
        with pytest.raises(TransferTimeout) as caught:
            await rx.get("0", "1", "late", timeout=0.3)
        assert caught.value.phase == "waiting for the sender's write"
        assert rx.health().quarantined == 1
        theirs.put("k@0_1", b"\x55" * (limit // 2))
        delivery = await rx.get("0", "1", "k", timeout=5)
        FAULTS.release()
        await until(lambda: not rx.health().quarantined)
        assert not (delivery.value != 0x55).any()
        # Its get was given up; the payload was not.
        late = await rx.get("0", "1", "late", timeout=5)
        assert not (late.value != 0xAA).any()
        del delivery, late
        await unused(rx)


async def test_one_payload_is_never_delivered_twice(namespace: str, port: int) -> None:
    """Their senders write a payload once for each pull that comes before the first has ended."""
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.put("k@0_1", b"x" * 1000)
        theirs.begin.clear()
        first = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
        await theirs.pulled.wait()
        others = [asyncio.ensure_future(rx.get("0", "1", "k", timeout=0.5)) for _ in range(3)]
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "k", timeout=0)
        for other in others:
            with pytest.raises(TransferTimeout):
                await other
        assert theirs.heard["pull"] == 1
        theirs.begin.set()
        assert (await first).nbytes == 1000
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "k", timeout=0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_new_get_takes_over_what_is_being_written(
    namespace: str, port: int, fails: bool
) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.put("k@0_1", b"x" * 1000)
        theirs.begin.clear()
        first = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
        await theirs.pulled.wait()
        first.cancel()
        await asyncio.wait([first])
        later = [asyncio.ensure_future(rx.get("0", "1", "k", timeout=20)) for _ in range(2)]
        await asyncio.sleep(0.1)
        if fails:
            del theirs.payloads["k@0_1"]
        theirs.begin.set()
        if fails:
            await until(lambda: rx.health().parked == 2)
            theirs.put("k@0_1", b"y" * 1000)
        await until(lambda: any(getting.done() for getting in later))
        assert not all(getting.done() for getting in later)
        theirs.put("k@0_1", b"z" * 7)
        deliveries = await asyncio.gather(*later)
        assert theirs.heard["pull"] == 2 + fails
        assert sorted(delivery.nbytes for delivery in deliveries) == [7, 1000]
        deliveries.clear()
        later.clear()
        await unused(rx)


@pytest.mark.parametrize("at", ["begin", "open"])
async def test_cancelled_while_it_is_written(namespace: str, port: int, at: str) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        for round_number in range(3):
            gate = getattr(theirs, at)
            gate.clear()
            theirs.pulled.clear()
            theirs.put("k@0_1", b"%d" % round_number * 5000)
            getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
            await theirs.pulled.wait()
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
            assert rx.health().quarantined == 1
            gate.set()
            await until(lambda: not rx.health().quarantined)
            assert theirs.payloads == {}
            delivery = await rx.get("0", "1", "k", timeout=0)
            assert delivery.value.numpy().tobytes() == b"%d" % round_number * 5000
            del delivery
            await unused(rx)


@pytest.mark.parametrize("how", ["cancelled", "device"])
async def test_given_up_while_it_is_decoded(
    namespace: str, port: int, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The sender has it no more; the slot is as it was."""
    value = {"t": torch.arange(1 << 20), "u": torch.ones(5000), "l": [1, {"x": torch.ones(3)}]}
    decoded, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        found = reading.read(*args, **options)
        decoded.set()
        go_on.wait(10)
        if how == "device" and go_on.is_set():
            raise UsageError("a device that takes no tensor")
        return found

    monkeypatch.setattr(foreign_taking, "read", slow)
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.put("k@0_1", object_of(value), fast=False)
        getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
        await asyncio.to_thread(decoded.wait)
        if how == "cancelled":
            getting.cancel()
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises((asyncio.CancelledError, UsageError)):
            await getting
        monkeypatch.setattr(foreign_taking, "read", reading.read)
        delivery = await rx.get("0", "1", "k", timeout=5)
        assert object_of(delivery.value) == object_of(value)
        assert theirs.heard["pull"] == 1
        del delivery, getting
        gc.collect()  # the error knows the frames in which it was raised
        await unused(rx)


async def test_what_landed_for_nobody_gives_way_to_what_is_newer(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port, buffer_ttl_seconds=0.3) as rx:
        for wanted in (b"newer", None):
            theirs.begin.clear()
            theirs.pulled.clear()
            theirs.put("k@0_1", b"old")
            getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
            await theirs.pulled.wait()
            getting.cancel()
            await asyncio.wait([getting])
            theirs.begin.set()
            await until(lambda: not rx.health().quarantined)
            if wanted is None:  # and it expires like any other
                await until(lambda: not rx.health().pool_used)
                with pytest.raises(KeyNotFound):
                    await rx.get("0", "1", "k", timeout=0)
            else:
                theirs.put("k@0_1", wanted)
                delivery = await rx.get("0", "1", "k", timeout=5)
                assert delivery.value.numpy().tobytes() == wanted
                del delivery


async def test_a_pull_that_has_not_had_its_turn_is_taken_back(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.begin.clear()
        gets = []
        for i in range(foreign_sender.PULLS + 4):
            theirs.put(f"k{i}@0_1", b"%d" % i)
            gets.append(asyncio.ensure_future(rx.get("0", "1", f"k{i}", timeout=20)))
        await until(lambda: theirs.heard["pull"] == foreign_sender.PULLS)
        await until(lambda: rx.health().in_flight == len(gets))
        for getting in gets[2:]:
            getting.cancel()
        await asyncio.wait(gets[2:])
        assert rx.health().quarantined == foreign_sender.PULLS - 2
        theirs.begin.set()
        for i in range(2):
            assert (await gets[i]).value.numpy().tobytes() == b"%d" % i
        await until(lambda: not rx.health().quarantined)
        assert theirs.heard["pull"] == foreign_sender.PULLS
        for i in range(2, len(gets)):
            delivery = await rx.get("0", "1", f"k{i}", timeout=5)
            assert delivery.value.numpy().tobytes() == b"%d" % i
            del delivery
        gets.clear()
        await unused(rx)


@pytest.mark.parametrize("heard", [False, True])
async def test_only_a_pull_that_may_have_been_heard_costs_its_slot(
    namespace: str, port: int, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    revoked = []
    revoke = Pool.revoke

    def counted(pool: Pool, lease: Any) -> bool:
        revoked.append(lease)
        return revoke(pool, lease)

    monkeypatch.setattr(Pool, "revoke", counted)
    ask = ZmqRequests.ask

    async def broken(self: ZmqRequests, body: bytes, asked: Any = None) -> bytes:
        if asked is None:
            return await ask(self, body)
        asked()
        raise ConnectionResetError if heard else ConnectionRefusedError

    monkeypatch.setattr(ZmqRequests, "ask", broken)
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.put("k@0_1", b"x" * 1000)
        with pytest.raises(PeerLost):
            await rx.get("0", "1", "k", timeout=5)
        await unused(rx)
        assert len(revoked) == heard


async def test_cleanup(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        waiting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
        await until(lambda: theirs.heard["query"] > 0)
        assert await rx.cleanup("k") == 1
        with pytest.raises(TransferCancelled):
            await waiting
        theirs.begin.clear()
        theirs.put("k@0_1", b"x" * 100)
        pulling = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
        await theirs.pulled.wait()
        assert await rx.cleanup("k") == 1
        with pytest.raises(TransferCancelled):
            await pulling
        theirs.begin.set()
        await unused(rx)  # nothing is kept for a request that was cleaned up
        assert await rx.cleanup("k") == 0


async def test_closing_with_all_kinds_of_gets(namespace: str, port: int) -> None:
    async with sender(port) as theirs:
        async with receiver(namespace, port) as rx:
            theirs.put("slow@0_1", b"x" * 1000)
            theirs.begin.clear()
            gets = [
                asyncio.ensure_future(rx.get("0", "1", key, timeout=20)) for key in ("slow", "none")
            ]
            await theirs.pulled.wait()
            closing = asyncio.ensure_future(rx.aclose())
            await asyncio.sleep(0.05)
            assert not closing.done()  # it is still being written
            theirs.begin.set()
            await closing
            for getting in gets:
                with pytest.raises(ClosedError):
                    await getting
            with pytest.raises(ClosedError):
                await rx.get("0", "1", "k")


async def test_aborting_under_a_write(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.put("k@0_1", b"x" * 1000)
        theirs.begin.clear()
        getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=20))
        await theirs.pulled.wait()
        rx.abort()
        with pytest.raises(ClosedError):
            await getting
        theirs.begin.set()
        await asyncio.sleep(0.05)


async def test_an_unanswered_pull_does_not_keep_its_slot_for_ever(
    namespace: str, port: int
) -> None:
    async with sender(port) as theirs, receiver(namespace, port, peer_timeout=0.3) as rx:
        theirs.put("k@0_1", b"x" * 1000)
        theirs.begin.clear()
        with pytest.raises(TransferTimeout):
            await rx.get("0", "1", "k", timeout=0.2)
        assert rx.health().quarantined == 1
        await unused(rx)  # access to it was ended
        theirs.begin.set()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "answer", [b"", b"\x80", b"trans_done", b"x" * 5000, b"\x83\xaarequest_id\xa1k"]
)
async def test_answers_that_make_no_sense(namespace: str, port: int, answer: bytes) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.answer = answer
        for timeout in (5, 0):
            with pytest.raises(ProtocolError):
                await rx.get("0", "1", "k", timeout=timeout)
        theirs.answer = None
        theirs.put("k@0_1", b"x")
        assert (await rx.get("0", "1", "k", timeout=5)).nbytes == 1
        assert rx.health().errors == 2


async def test_a_pull_that_is_answered_by_nonsense(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        theirs.put("k@0_1", b"x" * 1000)
        theirs.begin.clear()
        getting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=5))
        await theirs.pulled.wait()
        theirs.answer = b"trans_what"
        theirs.begin.set()
        with pytest.raises(ProtocolError, match="trans_what"):
            await getting
        await unused(rx)


async def test_objects_that_are_none(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        for data in (b"\xc1", b"\x82", b"x" * 100, b"\x81\xaa__tensor__\xc3"):
            theirs.put("k@0_1", data, fast=False)
            with pytest.raises(DecodeError):
                await rx.get("0", "1", "k", timeout=5)
            await unused(rx)
        theirs.put("k@0_1", b"", fast=False)
        with pytest.raises(ProtocolError, match="no bytes"):
            await rx.get("0", "1", "k", timeout=5)


async def test_too_large(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port, memory_pool_size=4096) as rx:
        theirs.put("k@0_1", b"x" * 5000)
        with pytest.raises(PayloadTooLarge, match="memory_pool_size"):
            await rx.get("0", "1", "k", timeout=5)
        assert theirs.heard["pull"] == 0


async def test_a_late_answer_goes_to_nobody(
    namespace: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket with an unanswered question is never used again."""
    monkeypatch.setattr(foreign_sender, "QUERY_SECONDS", 0.1)
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        honest = theirs._answer
        held = asyncio.Event()

        async def slow(body: bytes) -> bytes:
            answer = await honest(body)
            if b"first" in body:
                await held.wait()
            return answer

        theirs._answer = slow  # type: ignore[method-assign]
        theirs.put("first@0_1", b"1" * 11)
        with pytest.raises(TransferTimeout):
            await rx.get("0", "1", "first", timeout=0.35)
        theirs.put("second@0_1", b"2" * 22)
        getting = asyncio.ensure_future(rx.get("0", "1", "second", timeout=5))
        held.set()
        assert (await getting).value.numpy().tobytes() == b"2" * 22


async def test_senders_by_address_and_by_rank(namespace: str, port: int, other_port: int) -> None:
    async with sender(port) as one, sender(other_port) as two, receiver(namespace, port) as rx:
        one.put("k@0_1", b"one")
        metadata = two.put("k@0_1", b"two!")
        assert (await rx.get("0", "1", "k", metadata)).nbytes == 4
        assert (await rx.get("0", "1", "k")).nbytes == 3
        two.put("k@0_1", b"two!")
        rx.update_sender_info("127.0.0.1", other_port)
        assert (await rx.get("0", "1", "k")).nbytes == 4
        one.put("k@0_1", b"one")
        rx.update_sender_info("localhost", port, rank=0)
        assert (await rx.get("0", "1", "k")).nbytes == 3


async def test_what_their_wire_does_not_know(namespace: str, port: int) -> None:
    async with receiver(namespace, port) as rx:
        with pytest.raises(UsageError, match="has no streams"):
            rx.edge("0", "1").stream("s")
    spec = {"name": SessionDouble.name, "extra": {"peer": "vllm-omni"}}
    async with omni_async.open_transport(
        spec, role="receiver", stage="1", namespace=namespace
    ) as rx:
        with pytest.raises(UsageError, match="address is not known"):
            await rx.get("0", "1", "k")


async def test_a_connector_of_another_vendor_does_not_speak_it(namespace: str, port: int) -> None:
    from omni_async import registry
    from omni_async.testing.doubles.addressed import LoopbackZmq

    registry.register_backend(LoopbackZmq())
    for role in ("sender", "receiver"):
        spec = {"name": LoopbackZmq.name, "extra": {"peer": "vllm-omni", "zmq_port": port}}
        with pytest.raises(ConfigError, match="MooncakeTransferEngineConnector only"):
            async with omni_async.open_transport(spec, role=role, stage="1", namespace=namespace):
                pass


@pytest.mark.parametrize("peer", ["omni-async", "vllm-omni"])
async def test_both_ends_are_ours(namespace: str, port: int, peer: str) -> None:
    """A stage that was moved before its neighbour goes on when the neighbour has moved, too."""
    spec = {"name": SessionDouble.name, "extra": {"peer": peer, "zmq_port": port}}
    async with (
        omni_async.open_transport(
            spec, role="sender", stage="0", namespace=namespace, linger=0
        ) as tx,
        receiver(namespace, port) as rx,
    ):
        assert (tx.capabilities.notifies, tx.capabilities.credit) == (peer == "omni-async",) * 2
        assert not rx.capabilities.notifies
        waiting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=10))
        await asyncio.sleep(0.05)
        for value in ({"a": (1, 2), "t": torch.arange(9000)}, {"b": [None]}):
            await tx.put("0", "1", "k", value)
            delivery = await waiting
            assert delivery.value.pop("t", torch.arange(9000)).equal(torch.arange(9000))
            assert delivery.value in ({"a": [1, 2]}, {"b": [None]})
            waiting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=10))
            del delivery
        await tx.put("0", "1", "k", torch.arange(4, dtype=torch.int16))
        assert (await waiting).value.view(torch.int16).tolist() == [0, 1, 2, 3]
        await tx.cleanup("k")
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "k", timeout=0)


async def test_get_many(namespace: str, port: int) -> None:
    async with sender(port) as theirs, receiver(namespace, port) as rx:
        for i in range(20):
            theirs.put(f"k{i}@0_1", b"%d" % i)
        found = await rx.get_many("0", "1", [f"k{i}" for i in range(21)], timeout=0.5)
        assert isinstance(found.pop("k20"), TransferTimeout)
        for i in range(20):
            outcome = found[f"k{i}"]
            assert isinstance(outcome, omni_async.Delivery)
            assert outcome.value.numpy().tobytes() == b"%d" % i
