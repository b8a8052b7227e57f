"""Object stores: what went wrong for others, on the real servers of both."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.cli.servers import Server
from omni_async.cli.servers.mooncake import MooncakeMaster
from omni_async.cli.servers.yuanrong import YuanrongWorker
from omni_async.errors import (
    BackendUnavailable,
    EngineFault,
    KeyExists,
    KeyNotFound,
    PayloadTooLarge,
    PoolExhausted,
    TransferTimeout,
)
from omni_async.model import Role
from omni_async.registry import names, register_backend
from omni_async.testing.doubles.kept import KeptBackend
from omni_async.testing.doubles.kept import Server as KeptServer
from omni_async.testing.recipes import pattern
from omni_async.testing.sides import Side, attempt
from tests.ends import led
from tests.stores import loaded_or_skip, mooncake_store_or_skip

MIB = 1 << 20
ROOM = 64 * MIB
LEASE = 1.0
BOTH = ("mooncake-store", "yuanrong")


class Ends:
    """One store, and transports over it that find each other."""

    def __init__(self, connector: str, server: Server, namespace: str) -> None:
        self.connector = connector
        self.server = server
        self.namespace = namespace

    def options(self, role: Role, **extra: Any) -> dict[str, Any]:
        return {
            "extra": {**self.server.extra(role), **extra},
            "role": role,
            "stage": "0" if role == "sender" else "1",
            "namespace": self.namespace,
            "linger": 0.0,
        }

    def __call__(self, role: Role, **extra: Any) -> Any:
        options = self.options(role, **extra)
        spec = {"name": self.connector, "extra": options.pop("extra")}
        return omni_async.open_transport(spec, **options)


def _server(connector: str) -> Server:
    if connector == "mooncake-store":
        mooncake_store_or_skip()
        lease = f"--default_kv_lease_ttl={LEASE * 1000:.0f}"
        return MooncakeMaster(lease, "--client_ttl=3", segment=ROOM)
    loaded_or_skip("yr.datasystem.kv_client")
    return YuanrongWorker("--client_dead_timeout_s=3", memory=ROOM)


@pytest.fixture(params=BOTH)
def unserved(request: pytest.FixtureRequest, namespace: str) -> Iterator[Ends]:
    """A store of 64 MiB of this test alone, whose server does not run yet."""
    server = _server(request.param)
    yield Ends(request.param, server, namespace)
    server.kill()  # asked to end, one of them takes five seconds
    server.close()


@pytest.fixture
def ends(unserved: Ends) -> Ends:
    unserved.server.start()
    return unserved


@pytest.fixture(scope="module", params=BOTH)
def shared_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    server = _server(request.param)
    server.start()
    yield request.param, server
    server.kill()
    server.close()


@pytest.fixture
def shared(shared_server: tuple[str, Server], namespace: str) -> Ends:
    """A store of 64 MiB that no test stops or fills for good."""
    return Ends(*shared_server, namespace)


# --- F1: absent, empty, None and failed are four outcomes -----------------------------------------


async def test_absent_empty_and_none(shared: Ends) -> None:
    async with shared("sender") as tx, shared("receiver") as rx:
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "absent", timeout=0)
        with pytest.raises(TransferTimeout, match="it is not there"):
            await rx.get("0", "1", "absent", timeout=0.05)
        falsy: list[Any] = [b"", "", None, [], {}, 0, False]
        for value in falsy:
            await tx.put("0", "1", "k", value)
            got = (await rx.get("0", "1", "k", timeout=5)).value
            assert got == value
            assert type(got) is type(value)
        await tx.put("0", "1", "k", np.empty((3, 0, 2), np.float32))
        got = (await rx.get("0", "1", "k", timeout=5)).value
        assert (got.shape, got.dtype) == ((3, 0, 2), np.float32)
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "k", timeout=0)
        assert rx.health().transport_faults == 0
        assert rx.health().misses == 2


@pytest.mark.timeout(90)
async def test_a_failure_is_no_absence(ends: Ends) -> None:
    async with ends("sender") as tx, ends("receiver") as rx:
        await tx.put("0", "1", "k", b"")
        ends.server.kill()
        for key in ("k", "none"):
            with pytest.raises((EngineFault, TransferTimeout)) as caught:
                await asyncio.wait_for(rx.get("0", "1", key, timeout=0), 20)
            assert "not answer" in str(caught.value) or isinstance(caught.value, EngineFault)
            assert "it is not there" not in str(caught.value)
            assert caught.value.key == key
        assert rx.health().misses == 0
        assert rx.health().transport_faults + rx.health().timeouts == 2


# --- F2: a server that was restarted has forgotten everything ---------------------------------------


@pytest.mark.timeout(120)
async def test_a_restarted_server(ends: Ends) -> None:
    """What was there is lost, and said to be absent; all goes on with the transports that are open."""
    async with ends("sender") as tx, ends("receiver") as rx:
        await tx.put("0", "1", "before", bytes(200_000))
        waiting = asyncio.ensure_future(rx.get("0", "1", "later", timeout=60))
        await asyncio.sleep(0.1)
        ends.server.restart()
        began = time.monotonic()
        value = np.arange(100_000)
        while True:  # a failure in time, or it is done; never more than its limit
            try:
                await asyncio.wait_for(tx.put("0", "1", "later", value, timeout=5), 25)
                break
            except (EngineFault, PoolExhausted, PayloadTooLarge, TransferTimeout):
                assert time.monotonic() - began < 30
                await asyncio.sleep(0.1)
        delivery = await waiting
        assert np.array_equal(delivery.value, value)
        with pytest.raises((KeyNotFound, TransferTimeout)):
            await rx.get("0", "1", "before", timeout=0.5)
        for number in range(20):
            await tx.put("0", "1", f"k{number}", value, timeout=10)
            got = (await rx.get("0", "1", f"k{number}", timeout=10)).value
            assert np.array_equal(got, value)


# --- F3: the client starts before its server ------------------------------------------------------


async def test_a_server_that_starts_later(unserved: Ends) -> None:
    loop = asyncio.get_running_loop()
    opening = asyncio.ensure_future(unserved("sender", setup_timeout=20.0).__aenter__())
    await asyncio.sleep(3)
    assert not opening.done()
    unserved.server.begin()
    await loop.run_in_executor(None, unserved.server.wait)
    tx = await opening
    async with unserved("receiver") as rx:
        await tx.put("0", "1", "k", [1, 2])
        assert (await rx.get("0", "1", "k", timeout=5)).value == [1, 2]
    await tx.aclose()
    await loop.shutdown_default_executor()


async def test_a_server_that_never_starts(unserved: Ends) -> None:
    began = time.monotonic()
    with pytest.raises(BackendUnavailable) as caught:
        await unserved("receiver", setup_timeout=1.0).__aenter__()
    assert 0.9 < time.monotonic() - began < 6
    assert "127.0.0.1" in str(caught.value)
    assert "1 s" in str(caught.value)
    assert caught.value.remedy


# --- F8: one key is put twice ---------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_two_processes_put_one_key(shared: Ends) -> None:
    """Whoever reads has one whole value; a put says that it is there, or that it was refused."""
    times = 200
    async with led() as one, led() as other, shared("receiver") as rx:
        sides = [
            await peer.open("sender", shared.connector, **shared.options("sender"))
            for peer in (one, other)
        ]
        ended = asyncio.Event()
        outcomes: list[Any] = []

        async def write(side: Side, start: int) -> None:
            for number in range(start, start + times):
                recipe = pattern(20_000 + number, number)
                outcomes.append(await attempt(side.put("k", recipe, timeout=20)))

        async def read() -> int:
            count = 0
            while True:
                found = await attempt(rx.get("0", "1", "k", timeout=0 if ended.is_set() else 0.2))
                if isinstance(found, Exception):
                    assert isinstance(found, (KeyNotFound, TransferTimeout)), found
                    if ended.is_set():
                        return count
                    continue
                number = len(found.value) - 20_000
                assert np.array_equal(found.value, pattern(20_000 + number, number).make())
                del found
                count += 1

        reading = asyncio.ensure_future(read())
        await asyncio.gather(write(sides[0], 0), write(sides[1], 1000))
        ended.set()
        read_count = await reading
        refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert all(isinstance(error, KeyExists) for error in refused), refused
        assert len(outcomes) == 2 * times
        assert 0 < read_count <= 2 * times - len(refused)
        for side in sides:
            await side.close()


async def test_put_again_after_get_and_after_a_failure(shared: Ends) -> None:
    async with shared("sender") as tx, shared("receiver") as rx:
        for turn in range(5):
            await tx.put("0", "1", "k", [turn])
            assert (await rx.get("0", "1", "k", timeout=5)).value == [turn]
        with pytest.raises(PayloadTooLarge):
            await tx.put("0", "1", "k", bytes(2 * ROOM))
        await tx.put("0", "1", "k", "first")
        await tx.put("0", "1", "k", "second")  # nobody has read it: it is replaced
        assert (await rx.get("0", "1", "k", timeout=5)).value == "second"


# --- F11: what is absent is done, what is read is tried again ---------------------------------------


async def test_cleaning_up_what_is_being_read_holds_nobody_up(shared: Ends) -> None:
    async with shared("sender") as tx, shared("receiver") as rx:
        await tx.put("0", "1", "shared", bytes(1000), consumers=2, request_id="r")
        await tx.put("0", "1", "read", bytes(1000), request_id="r")
        for key in ("shared", "read"):
            assert len((await rx.get("0", "1", key, timeout=5)).value) == 1000
        await asyncio.sleep(0.05)  # what was read is deleted behind its reader
        began = time.monotonic()
        assert await tx.cleanup("r") == 1
        assert await tx.cleanup("r") == 0
        assert time.monotonic() - began < 0.5
        for number in range(20):
            await tx.put("0", "1", f"k{number}", number, timeout=5)
            assert (await rx.get("0", "1", f"k{number}", timeout=5)).value == number
        assert time.monotonic() - began < 2
        await _until(lambda: tx.drain(0.0), 0, LEASE + 5)
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", "shared", timeout=0)


async def test_a_lease_is_waited_for_without_blocking(namespace: str) -> None:
    """Of a store of one process, whose leases are as long as a test likes."""
    register_backend(KeptBackend())
    server = KeptServer.named(namespace)
    spec = {"name": "kept", "extra": {"server": namespace}}
    options: dict[str, Any] = {"namespace": namespace, "linger": 0}
    async with omni_async.open_transport(spec, role="sender", stage="0", **options) as tx:
        await tx.put("0", "1", "leased", 1, request_id="r")
        await tx.put("0", "1", "gone", 2, request_id="r")
        [name] = [name for name in server.objects if name.startswith("leased")]
        del server.objects[next(name for name in server.objects if name.startswith("gone"))]
        loop = asyncio.get_running_loop()
        server.leases[name] = loop.time() + 1.0
        began, worst, last = loop.time(), 0.0, loop.time()
        assert await tx.cleanup("r") == 1
        while name in server.objects:
            await asyncio.sleep(0.002)
            worst, last = max(worst, loop.time() - last), loop.time()
            assert loop.time() - began < 5
        assert loop.time() - began >= 1.0
        assert worst < 0.1
        assert tx.health().errors == 0


# --- F12: a store of 64 MiB -------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_a_thousand_payloads_go_through_a_small_store(ends: Ends) -> None:
    async with ends("sender") as tx, ends("receiver") as rx:
        expected = np.arange(MIB, dtype=np.uint32).astype(np.uint8)

        async def put() -> None:
            for number in range(1000):
                expected[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
                await tx.put("0", "1", f"k{number}", expected, timeout=30)

        putting = asyncio.ensure_future(put())
        for number in range(1000):
            delivery = await rx.get("0", "1", f"k{number}", timeout=30)
            assert int.from_bytes(delivery.value[:8].tobytes(), "little") == number
            assert delivery.value[-1] == 255
            delivery.release()
            del delivery
        await putting
        assert await tx.drain(5) == 0
        assert (tx.health().errors, rx.health().errors) == (0, 0)


@pytest.mark.timeout(90)
async def test_a_full_store_says_so_in_time_and_takes_more_later(ends: Ends) -> None:
    async with ends("sender") as tx, ends("receiver") as rx:
        count = 0
        while True:
            try:
                await tx.put("0", "1", f"k{count}", bytes([count]) * (4 * MIB), timeout=0)
            except PoolExhausted:
                break
            count += 1
            assert count < 17
        assert count >= 8
        for timeout in (0.0, 0.5):
            began = time.monotonic()
            with pytest.raises(PoolExhausted) as caught:
                await tx.put("0", "1", "more", bytes(4 * MIB), timeout=timeout)
            assert timeout * 0.8 <= time.monotonic() - began < timeout + 3
            assert caught.value.retryable
            assert caught.value.key == "more"
        more = asyncio.ensure_future(tx.put("0", "1", "more", b"m" * (4 * MIB), timeout=20))
        for number in range(count):  # nothing was dropped for it
            got = await rx.get("0", "1", f"k{number}", timeout=5)
            assert got.value == bytes([number]) * (4 * MIB)
            del got
        await more
        assert (await rx.get("0", "1", "more", timeout=5)).value == b"m" * (4 * MIB)


# --- F14: tensors of every kind -----------------------------------------------------------------------


async def test_tensors_of_every_kind(shared: Ends) -> None:
    torch = pytest.importorskip("torch")
    kinds = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "bool", "int64", "complex64"]
    async with shared("sender") as tx, shared("receiver") as rx:
        for name in kinds:
            base = torch.arange(48, dtype=torch.float32).reshape(4, 12)
            whole = base.to(getattr(torch, name))
            for tensor in (whole, whole[1:3, ::2], whole[:0], whole.reshape(-1)[5]):
                await tx.put("0", "1", "k", {"t": tensor})
                got = (await rx.get("0", "1", "k", timeout=5)).value["t"]
                assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape), name
                sent = tensor.contiguous().reshape(-1).view(torch.uint8)
                assert torch.equal(got.reshape(-1).view(torch.uint8), sent), name


# --- F20: the package of a backend is missing -----------------------------------------------------

VENDORS = {
    "mooncake-store": "mooncake",
    "yuanrong": "yuanrong",
    "mooncake": "mooncake",
    "nixl": "nixl",
    "mori": "mori",
    "yuanrong-te": "yuanrong",
}
WITHOUT = """
import asyncio, json, sys
import omni_async
backend, announced = sys.argv[1:]
deploy = omni_async.load_deploy({"stages": [
    {"stage_id": 0, "output_connectors": {"to_stage_1": {"name": backend}}},
    {"stage_id": 1, "input_connectors": {"from_stage_0": {"name": backend}}},
]})
async def main():
    try:
        async with omni_async.open_stage(deploy, stage_id=0):
            print(json.dumps(["opened", "", ""]))
    except omni_async.BackendUnavailable as error:
        print(json.dumps([type(error).__name__, str(error), error.remedy or ""]))
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", VENDORS)
def test_a_missing_package_is_one_error_at_start(backend: str, tmp_path: Path) -> None:
    for module in ("mooncake", "yr", "datasystem", "nixl", "nixl_cu12", "mori"):
        (tmp_path / module).mkdir()
        refusal = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')"
        (tmp_path / module / "__init__.py").write_text(refusal)
    path = os.pathsep.join([str(tmp_path), str(Path(omni_async.__file__).parents[1])])
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, backend, ""],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    kind, text, remedy = json.loads(done.stdout)
    assert kind == "BackendUnavailable", text
    assert "0->1" in text
    assert remedy
    if backend in names():
        assert f"omni-async[{VENDORS[backend]}" in text + remedy
    assert time.monotonic() - began < 10
    assert "Traceback" not in done.stderr


async def _until(ask: Callable[[], Any], wanted: Any, within: float) -> None:
    limit = time.monotonic() + within
    while (found := await ask()) != wanted:
        assert time.monotonic() < limit, found
        await asyncio.sleep(0.1)
