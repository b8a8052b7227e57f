"""What goes wrong with ZMQ for others: requests, lost messages, hanging ends, bad messages, ports, hosts.

Whole transports with words over ZMQ and the loopback engine; what is about one line alone is tried in
``tests/rendezvous``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import random
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

import omni_async
from omni_async.cli.free_ports import FreePorts
from omni_async.registry import register_backend
from omni_async.rendezvous.zmq_hosts import routed_address
from omni_async.testing.doubles.addressed import LoopbackZmq

HOST = "127.0.0.1"
Pair = tuple[omni_async.Transport, omni_async.Transport]


@pytest.fixture(scope="module", autouse=True)
def connector() -> None:
    register_backend(LoopbackZmq())


@pytest.fixture
def port() -> Iterator[int]:
    with FreePorts() as ports:
        yield ports.of("sender")


def spec(port: int, **extra: Any) -> dict[str, Any]:
    known = {"host": HOST, "zmq_port": port, "sender_host": HOST, "sender_zmq_port": port}
    return {"name": "loopback-zmq", "extra": {**known, **extra}}


def sender(port: int, namespace: str, **extra: Any) -> Any:
    return omni_async.open_transport(
        spec(port, **extra), role="sender", stage="0", namespace=namespace, linger=0
    )


def receiver(port: int, namespace: str, **extra: Any) -> Any:
    return omni_async.open_transport(
        spec(port, **extra), role="receiver", stage="1", namespace=namespace
    )


@contextlib.asynccontextmanager
async def both(port: int, namespace: str, **extra: Any) -> AsyncIterator[Pair]:
    async with (
        sender(port, namespace, **extra) as tx,
        receiver(port, namespace, **extra) as rx,
    ):
        yield tx, rx


# --- E1: after one timeout a REQ socket is unusable -------------------------------------------------


async def test_after_a_timeout_the_next_request_has_its_own_answer(
    port: int, namespace: str
) -> None:
    async with both(port, namespace) as (tx, rx):
        for number in range(50):
            with pytest.raises(omni_async.TransferTimeout):
                await rx.get("0", "1", f"never {number}", timeout=0.01)
            await tx.put("0", "1", f"never {number}", "late")  # its answer is on its way, or not
            await tx.put("0", "1", f"k {number}", number)
            assert (await rx.get("0", "1", f"k {number}", timeout=5)).value == number
            assert (await rx.get("0", "1", f"never {number}", timeout=5)).value == "late"


# --- E2: a cancelled or timed-out receive loses a message -------------------------------------------


async def test_three_thousand_arrive_through_receives_that_are_cut_short(
    port: int, namespace: str
) -> None:
    count = 3000
    dice = random.Random(2)
    async with both(port, namespace, inline_limit=8192) as (tx, rx):

        async def put() -> None:
            for number in range(count):
                await tx.put("0", "1", f"k {number}", number, timeout=30)

        putting = asyncio.ensure_future(put())
        cut = 0
        for number in range(count):
            while True:
                try:
                    got = await asyncio.wait_for(
                        rx.get("0", "1", f"k {number}", timeout=30), dice.uniform(0, 0.0008)
                    )
                except (asyncio.TimeoutError, TimeoutError):
                    cut += 1
                    continue
                assert got.value == number
                break
        await putting
        assert cut > 100
        assert rx.health().parked == 0


# --- E3: the end waits for who is not there ---------------------------------------------------------


async def test_closing_without_a_peer_takes_no_time(port: int, namespace: str) -> None:
    began = time.monotonic()
    async with receiver(port, namespace) as rx:
        waiting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=60))
        await asyncio.sleep(0.05)
    assert time.monotonic() - began < 2
    with pytest.raises(omni_async.ClosedError):
        await waiting
    began = time.monotonic()
    async with sender(port, namespace) as tx:
        await tx.put("0", "1", "k", b"for nobody")
    assert time.monotonic() - began < 2


# --- E4: one bad message ends the listener ----------------------------------------------------------


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


async def test_bad_messages_are_counted_and_the_next_request_is_served(
    port: int, namespace: str, tmp_path: Path
) -> None:
    trap = pickle.dumps(Trap(tmp_path / "touched"))
    async with both(port, namespace) as (tx, rx):
        await tx.put("0", "1", "before", b"1")
        assert (await rx.get("0", "1", "before", timeout=5)).value == b"1"
        listener = tx._sending._listener  # type: ignore[attr-defined]
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(f"tcp://{HOST}:{port}")
        bad: list[list[bytes]] = [
            [b"", b""],
            [struct.pack("<I", 1 << 30)],
            [os.urandom(500)],
            [b"a", b"b", b"c", b"d"],
            [struct.pack("<I", 3) + b"\x81\xa1a"],
            [trap],
            [struct.pack("<I", len(trap)) + trap],
        ]
        for frames in bad:
            dealer.send_multipart(frames)
        over = time.monotonic() + 10
        while listener.dropped < len(bad) and time.monotonic() < over:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert listener.dropped == len(bad)
        for _ in range(1000):
            with socket.create_connection((HOST, port)):
                pass
            await asyncio.sleep(0)
        await tx.put("0", "1", "after", bytes(100_000))
        assert (await rx.get("0", "1", "after", timeout=5)).nbytes == 100_000
        dealer.close(0)
        context.term()
    assert list(tmp_path.iterdir()) == []


async def test_nobody_listens_at_all_interfaces(port: int, namespace: str) -> None:
    async with sender(port, namespace, host="0.0.0.0") as tx:
        host = (await tx.put("0", "1", "k", b"")).metadata["source_host"]
        assert host not in ("0.0.0.0", "::", "")
        rows = Path("/proc/net/tcp").read_text().split("\n")
        mine = [row.split()[1] for row in rows if f":{port:04X} 00000000:0000 0A" in row]
        assert mine
        assert not any(address.startswith("00000000:") for address in mine)


# --- E7: the address is in use ----------------------------------------------------------------------


async def test_a_port_that_is_taken_is_an_error_at_once(port: int, namespace: str) -> None:
    with socket.create_server((HOST, port)) as taken:
        began = time.monotonic()
        with pytest.raises(omni_async.UsageError) as caught:
            async with sender(port, namespace):
                pass
        assert time.monotonic() - began < 2
        assert f"tcp://{HOST}:{port}" in str(caught.value)
        assert "this process" in str(caught.value)
        assert taken.fileno() >= 0
    async with both(port, namespace) as (tx, rx):
        await tx.put("0", "1", "k", 1)
        assert (await rx.get("0", "1", "k", timeout=5)).value == 1


async def test_again_on_the_same_port_at_once(port: int, namespace: str) -> None:
    async with receiver(port, namespace) as rx:
        for number in range(10):
            async with sender(port, namespace) as tx:
                await tx.put("0", "1", f"k {number}", number)
                assert (await rx.get("0", "1", f"k {number}", timeout=5)).value == number


# --- E8, E9: hosts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("localhost", None),
        (socket.gethostname(), None),
        ("::1", None),
        ("[::1]", None),
        ("0.0.0.0", None),
        ("", None),
        ("auto", None),
        ("127.0.0.1:5", "without a port"),
        ("no-such-host.invalid", "no-such-host.invalid"),
        ("192.0.2.250", "no address of this machine"),
    ],
)
async def test_a_host_works_or_is_refused_with_the_reason(
    host: str, reason: str | None, port: int, namespace: str
) -> None:
    if reason is not None:
        with pytest.raises(omni_async.ConfigError, match=reason):
            async with sender(port, namespace, host=host):
                pass
        return
    async with (
        sender(port, namespace, host=host) as tx,
        receiver(port, namespace, sender_host=None) as rx,
    ):
        receipt = await tx.put("0", "1", "k", 1)
        told = receipt.metadata
        assert told["source_host"] not in ("", "0.0.0.0", "::", "auto", "*")
        assert told["source_port"] == port
        assert (await rx.get("0", "1", "k", metadata=told, timeout=5)).value == 1


async def test_what_is_told_to_others_is_the_routed_address(port: int, namespace: str) -> None:
    if routed_address() is None:
        pytest.skip("this machine has no way out")
    async with sender(port, namespace, host="auto") as tx:
        told = (await tx.put("0", "1", "k", 1)).metadata
        assert told["source_host"] == routed_address()


# --- E11: a peer that has gone, or takes nothing ----------------------------------------------------


async def test_words_for_who_has_gone_are_nobodys_trouble(port: int, namespace: str) -> None:
    async with sender(port, namespace) as tx:
        async with receiver(port, namespace) as rx:
            waiting = asyncio.ensure_future(rx.get("0", "1", "k", timeout=60))
            await asyncio.sleep(0.05)
            rx.abort()
        with pytest.raises(omni_async.ClosedError):
            await waiting
        await tx.put("0", "1", "k", bytes(100_000))
        async with receiver(port, namespace) as rx:
            assert (await rx.get("0", "1", "k", timeout=5)).nbytes == 100_000


# --- E13: a failed start ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["sender", "receiver"])
async def test_the_first_error_of_a_failed_start_is_shown(
    role: str, port: int, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (
        "omni_async.rendezvous.zmq_channel.local_places",
        "omni_async.rendezvous.zmq_channel.bind",
        "omni_async.rendezvous.zmq_channel.new_socket",
        "omni_async.rendezvous.zmq_channel.ZmqListener",
        "omni_async.rendezvous.zmq_channel.ZmqDialer",
        "omni_async.rendezvous.zmq_channel.ZmqChannels._prepare",
    )
    for step in steps:
        with monkeypatch.context() as patched:

            def fail(*arguments: Any, **more: Any) -> Any:
                raise ZeroDivisionError("this step fails")

            patched.setattr(step, fail)
            try:
                async with (sender if role == "sender" else receiver)(port, namespace) as one:
                    if role == "receiver":
                        await one.get("0", "1", "k", timeout=0)
            except ZeroDivisionError:
                pass
            except omni_async.KeyNotFound:
                assert role == "receiver"  # steps of the other side
        gc.collect()
    async with both(port, namespace) as (tx, rx):
        await tx.put("0", "1", "k", 1)
        assert (await rx.get("0", "1", "k", timeout=5)).value == 1


# --- E14: loops -------------------------------------------------------------------------------------


def exchange(port: int, namespace: str, times: int = 3) -> Any:
    async def main() -> int:
        async with both(port, namespace) as (tx, rx):
            for number in range(times):
                await tx.put("0", "1", f"k {number}", number)
                assert (await rx.get("0", "1", f"k {number}", timeout=5)).value == number
        return times

    return main()


def test_one_loop_after_another(port: int, namespace: str) -> None:
    for _ in range(3):
        assert asyncio.run(exchange(port, namespace)) == 3


def test_a_loop_of_another_kind(port: int, namespace: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop()
    assert loop.run_until_complete(exchange(port, namespace)) == 3
    loop.close()


def test_loops_of_several_threads(namespace: str) -> None:
    with FreePorts() as ports:
        done: list[int] = []
        threads = [
            threading.Thread(
                target=lambda n=n: done.append(
                    asyncio.run(exchange(ports.of(n), f"{namespace}-{n}", 20))
                )
            )
            for n in range(4)
        ]
        for n in range(4):
            ports.of(n)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert done == [20] * 4


# --- E15: timers keep large messages alive ----------------------------------------------------------


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.soak)])
async def test_large_payloads_with_long_timeouts_do_not_pile_up(
    count: int, port: int, namespace: str
) -> None:
    nbytes = 50 << 20
    async with both(port, namespace, memory_pool_size=160 << 20) as (tx, rx):
        value = bytes(nbytes)
        peak, before = 0, 0
        for number in range(count):
            await tx.put("0", "1", f"k {number}", value, timeout=600)
            got = await rx.get("0", "1", f"k {number}", timeout=600)
            assert got.nbytes == nbytes
            del got
            rss = psutil.Process().memory_info().rss
            if number == 4:
                before = rss
            peak = max(peak, rss)
        assert peak - before < 2 * nbytes


async def test_nor_do_large_words(port: int, namespace: str) -> None:
    nbytes = 1 << 20
    async with both(port, namespace, inline_limit=nbytes) as (tx, rx):
        value = bytes(nbytes - 100)
        peak, before = 0, 0
        for number in range(300):
            await tx.put("0", "1", f"k {number}", value, timeout=600)
            got = await rx.get("0", "1", f"k {number}", timeout=600)
            assert got.nbytes == len(value)
            del got
            rss = psutil.Process().memory_info().rss
            if number == 50:
                before = rss
            peak = max(peak, rss)
        assert peak - before < 32 << 20
