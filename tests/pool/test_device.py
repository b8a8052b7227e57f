"""Memory of a device, by a runtime that only keeps a diary; the real one where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from omni_async import UsageError, open_transport, registry
from omni_async.abc import Engine, MemorySource, Options, Revoke
from omni_async.model import Role
from omni_async.pool.device import DeviceArray, DeviceMemory, PinnedMemory
from omni_async.testing.doubles.loopback import LoopbackEngine, LoopbackWrite
from omni_async.testing.leaks import quiet

torch = pytest.importorskip("torch")

DEVICE = "cpu:0"
"""torch takes it for a device, and the library for one that is not the host."""


class FakeRuntime:
    """As much of ``torch.cuda`` as copies need, with a diary."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        outer = self

        class Stream:
            def __init__(self, device: object) -> None:
                outer.diary.append(f"stream on {device}")

            def wait_stream(self, stream: str) -> None:
                outer.diary.append(f"waits for {stream}")

            def wait_event(self, event: str) -> None:
                outer.diary.append(f"waits for {event}")

            def synchronize(self) -> None:
                outer.diary.append("synchronised")

        self.Stream = Stream

    def default_stream(self, device: object) -> str:
        return "the caller's"

    def current_stream(self, device: object) -> Any:
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self._current = stream
        self.diary.append("enter")
        yield
        self.diary.append("leave")


COPY = [f"stream on {DEVICE}", "waits for the caller's", "enter", "synchronised", "leave"]


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def memory(runtime: FakeRuntime) -> DeviceMemory:
    return DeviceMemory(DEVICE, torch, runtime)


# --- blocks ---------------------------------------------------------------------------------------


def test_a_block(memory: DeviceMemory) -> None:
    block = memory.allocate(4096)
    assert (block.nbytes, block.fd, block.device) == (4096, -1, DEVICE)
    assert block.address == block.tensor.data_ptr()
    assert block.keep() is block.tensor
    with pytest.raises(ValueError, match="cannot be seen"):
        block.view()
    block.discard(0, 4096)
    block.close()
    with pytest.raises(ValueError, match="at least one byte"):
        memory.allocate(0)


def test_a_device_without_room(runtime: FakeRuntime) -> None:
    with pytest.raises(MemoryError, match="no memory of"):
        DeviceMemory(DEVICE, torch, runtime).allocate(1 << 60)


def test_addresses_that_were_withdrawn_are_never_used_again(memory: DeviceMemory) -> None:
    block = memory.allocate(1 << 20)
    address = block.address
    block.withdraw(0, 4096)
    block.close()
    del block
    assert all(memory.allocate(1 << 20).address != address for _ in range(20))


def test_what_is_lifted_is_its_own(memory: DeviceMemory, runtime: FakeRuntime) -> None:
    block = memory.allocate(4096)
    block.tensor.copy_(torch.arange(4096) % 251)
    lifted = block.lift(100, 50, 3)
    assert runtime.diary == COPY
    block.tensor.zero_()
    assert lifted.nbytes == 50
    assert lifted.tensor.tolist() == list(range(100, 150))
    head = lifted[:3]
    assert isinstance(head, np.ndarray)
    assert head.tolist() == [100, 101, 102]
    part = lifted[10:20]
    assert isinstance(part, DeviceArray)
    assert part.fetch().tolist() == list(range(110, 120))


# --- a whole transport ----------------------------------------------------------------------------


class OnDeviceEngine(LoopbackEngine):
    device = DEVICE


class OnDevice(LoopbackWrite):
    """Moves bytes between two pools of a device."""

    name = "LoopbackOnDevice"
    alias = "loopback-on-device"
    revoke = Revoke.NOTHING
    runtime: FakeRuntime

    def engine(self, options: Options, role: Role) -> Engine:
        return OnDeviceEngine(self.verb)

    def memory(self, options: Options, role: Role) -> MemorySource:
        return DeviceMemory(DEVICE, torch, self.runtime)


@pytest.fixture
async def pair(namespace: str, runtime: FakeRuntime) -> AsyncIterator[tuple[Any, Any]]:
    backend = OnDevice()
    backend.runtime = runtime
    registry.register_backend(backend)
    try:
        async with (
            open_transport(backend.alias, role="sender", stage=0, namespace=namespace) as tx,
            open_transport(backend.alias, role="receiver", stage=1, namespace=namespace) as rx,
        ):
            yield tx, rx
            await quiet(tx)
            await quiet(rx)
    finally:
        for name in (backend.name, backend.alias):
            del registry._loaded[name]


VALUES: dict[str, Any] = {
    "a tensor": lambda: torch.arange(100_000, dtype=torch.float32).reshape(100, 1000),
    "bfloat16": lambda: torch.arange(1000).to(torch.bfloat16),
    "turned": lambda: torch.arange(12_000).reshape(100, 120).t(),
    "complex": lambda: torch.complex(torch.ones(1000), torch.ones(1000)).conj(),
    "nothing": lambda: torch.empty((3, 0, 2)),
    "a number": lambda: torch.tensor(3.5),
    "small": lambda: torch.arange(3),
    "large": lambda: torch.arange(2_000_000),
}


def same(left: Any, right: Any) -> None:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert torch.equal(left, right.resolve_conj())


@pytest.mark.parametrize("name", list(VALUES))
async def test_values_arrive(pair: tuple[Any, Any], name: str) -> None:
    tx, rx = pair
    value = VALUES[name]()
    for sent in (
        value,
        {"a": value, "b": [value.clone(), np.arange(500), "text" * 100, b"x" * 300]},
    ):
        await tx.put("0", "1", "key", sent)
        got = (await rx.get("0", "1", "key", timeout=10)).value
        if isinstance(sent, dict):
            same(got["a"], value)
            same(got["b"][0], value)
            assert got["b"][1].tolist() == list(range(500))
            assert got["b"][2:] == ["text" * 100, b"x" * 300]
        else:
            same(got, value)


async def test_bytes_are_there_before_the_engine_sees_them(
    pair: tuple[Any, Any], runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx, rx = pair
    write = OnDeviceEngine.write

    async def seen(*args: Any) -> None:
        runtime.diary.append("written")
        await write(*args)

    monkeypatch.setattr(OnDeviceEngine, "write", seen)
    await tx.put("0", "1", "key", torch.arange(5000))
    await rx.get("0", "1", "key", timeout=10)
    assert runtime.diary == [*COPY, "written", *COPY]


async def test_a_slot_is_free_as_soon_as_it_was_taken(pair: tuple[Any, Any]) -> None:
    tx, rx = pair
    await tx.put("0", "1", "key", torch.arange(5000))
    delivery = await rx.get("0", "1", "key", timeout=10)
    assert rx.health().pool_used == 0
    assert delivery.value[-1] == 4999


async def test_bytes_come_to_the_host(pair: tuple[Any, Any]) -> None:
    tx, rx = pair
    for raw_of in (torch.arange(5000, dtype=torch.uint8), {"a": torch.arange(5000)}):
        await tx.put("0", "1", "key", raw_of)
        buffer = (await rx.get("0", "1", "key", timeout=10, raw=True)).value
        assert isinstance(buffer.array, np.ndarray)
        if not isinstance(raw_of, dict):
            assert np.array_equal(buffer.array, raw_of.numpy())


async def test_a_device_pool_has_no_buffers_for_the_host(pair: tuple[Any, Any]) -> None:
    tx, _ = pair
    with pytest.raises(UsageError, match="the pool is on"):
        await tx.allocate(100)


# --- pinned host memory ---------------------------------------------------------------------------


class FakeCuda:
    """``torch.cuda``, as far as it pins."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.pinned: dict[int, int] = {}

    def cudart(self) -> FakeCuda:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if not self.status:
            self.pinned[address] = nbytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def test_pinned_memory() -> None:
    cuda = FakeCuda()
    block = PinnedMemory(cuda).allocate(1 << 20)
    assert cuda.pinned == {block.address: 1 << 20}
    view = block.view(4096, 10)
    view[:] = b"0123456789"
    block.discard(0, 1 << 20)
    assert bytes(view) == b"0123456789"
    block.withdraw(8192, 4096)
    block.close()
    block.close()
    assert not cuda.pinned
    assert bytes(view) == b"0123456789"


def test_memory_that_cannot_be_pinned() -> None:
    with pytest.raises(MemoryError, match=r"does not pin .* \(status 2\)"):
        PinnedMemory(FakeCuda(2)).allocate(1 << 20)


# --- with a device --------------------------------------------------------------------------------


@pytest.mark.hardware
def test_memory_of_a_real_device() -> None:
    memory = DeviceMemory("cuda", torch)
    block = memory.allocate(64 << 20)
    source = torch.arange(1 << 20, device="cuda")
    with block.copying():
        block.tensor[: source.nbytes].view(torch.int64).copy_(source)
    lifted = block.lift(0, source.nbytes, 8)
    assert torch.equal(lifted.tensor.view(torch.int64), source)


@pytest.mark.hardware
def test_host_memory_that_a_real_device_reaches() -> None:
    torch.cuda.init()
    block = PinnedMemory(torch.cuda).allocate(64 << 20)
    tensor = torch.from_numpy(np.frombuffer(block.view(), np.uint8))
    assert tensor.is_pinned()
    block.close()
    assert not tensor.is_pinned()
