"""Frames: where the bytes lie, how they get elsewhere, and who may be a frame of its own."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni_async.codec import Frame, decode, encode, register_buffer
from omni_async.codec.frames import ArrayFrame, DeviceFrame, TensorFrame
from omni_async.errors import DecodeError, EncodeError, UsageError

from .landing import land, same, slot, trip


class Slab:
    """What a transport's own buffer looks like."""

    def __init__(self, data: bytes) -> None:
        self.array = np.frombuffer(data, np.uint8)


class Lookalike:
    def __init__(self, data: bytes) -> None:
        self.array = np.frombuffer(data, np.uint8)


register_buffer(Slab)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_contiguous_memory_is_told_by_address_and_kept() -> None:
    array = np.arange(1000.0)
    data = b"x" * 5000
    encoded = encode({"a": array[10:20], "b": data, "c": bytearray(5000)})
    first, second, third = encoded.frames
    assert (first.address, first.nbytes, first.device) == (address(array) + 80, 80, "cpu")
    assert second.address == address(np.frombuffer(data, np.uint8))
    assert (second.nbytes, third.nbytes) == (5000, 5000)
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is not None
    del first, encoded
    gc.collect()
    assert gone() is None


def test_other_memory_has_no_address() -> None:
    (frame,) = encode(np.arange(10)[::2]).frames
    assert (frame.address, frame.nbytes) == (0, 40)
    assert type(frame) is ArrayFrame


@pytest.mark.parametrize(
    "value", [b"x" * 5000, np.arange(9), np.arange(9)[::2], np.zeros((0, 2)), b""], ids=repr
)
def test_targets_of_another_length_are_refused(value: Any) -> None:
    (frame,) = encode(value).frames
    for nbytes in {frame.nbytes + 1, max(frame.nbytes - 1, 1), 0} - {frame.nbytes}:
        with pytest.raises(UsageError, match=f"{frame.nbytes} bytes does not fit .* {nbytes}"):
            frame.copy_into(slot(nbytes).data)
    target = slot(frame.nbytes)
    frame.copy_into(target.data)
    frame.copy_into(memoryview(bytearray(frame.nbytes)))


def test_copies_do_not_touch_what_lies_beside() -> None:
    for value in (np.arange(9, dtype=np.int8), np.arange(18, dtype=np.int8)[::2], b"abcdefghi"):
        memory = slot(9 + 128)
        before = memory.copy()
        (frame,) = encode(value).frames
        frame.copy_into(memory.data[64:73])
        assert (memory[:64] == before[:64]).all()
        assert (memory[73:] == before[73:]).all()
        assert memory[64:73].tobytes() == bytes(value)


def test_a_buffer_object_is_one_frame() -> None:
    for data in (b"some bytes", b""):
        buffer = Slab(data)
        encoded = encode(buffer)
        assert encoded.fast
        assert encoded.nbytes == len(data)
        if data:
            assert encoded.frames[0].address == address(buffer.array)
        received = trip(buffer)
        torch = pytest.importorskip("torch")
        same(torch.tensor(list(data), dtype=torch.uint8), received)


def test_a_buffer_object_is_only_a_whole_value() -> None:
    with pytest.raises(EncodeError, match="type Slab can be sent only as the whole value") as info:
        encode({"x": Slab(b"x")})
    assert info.value.path == "value['x']"
    with pytest.raises(EncodeError, match="object of type Lookalike"):
        encode(Lookalike(b"x"))


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    from omni_async.codec import tensors

    kept = {k: v for k, v in sys.modules.items() if k == "torch" or k.startswith("torch.")}
    tensors.load_torch.cache_clear()
    for name in kept:
        del sys.modules[name]
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
        sys.modules.update(kept)


def test_without_torch_a_buffer_object_arrives_as_an_array() -> None:
    encoded = encode(Slab(b"some bytes"))
    buffers = land(encoded)
    with without_torch():
        received = decode(encoded.header, buffers)
        assert np.shares_memory(received, buffers[0])
        same(np.frombuffer(b"some bytes", np.uint8), received)
        assert not decode(encoded.header, buffers, writable=False).flags.writeable


def test_without_torch_a_tensor_is_an_error_that_names_it() -> None:
    torch = pytest.importorskip("torch")
    for value in (torch.ones(3), [torch.ones(3)], torch.float32, torch.Size([1])):
        encoded = encode(value)
        buffers = land(encoded)
        with without_torch(), pytest.raises(DecodeError, match="torch cannot be imported here"):
            decode(encoded.header, buffers)


# --- devices --------------------------------------------------------------------------------------


class FakeRuntime:
    """As much of ``torch.cuda`` as a copy needs, with a diary."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        outer = self

        class Stream:
            def __init__(self, device: object = None) -> None:
                outer.diary.append(f"stream on {device}")

            def record_event(self) -> str:
                outer.diary.append("event recorded")
                return "event"

            def wait_event(self, event: str) -> None:
                outer.diary.append(f"wait for {event}")

            def synchronize(self) -> None:
                outer.diary.append("synchronised")

        self.Stream = Stream

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self.diary.append("enter")
        yield
        self.diary.append("leave")

    def current_stream(self, device: object) -> Any:
        return self.Stream(device)


class OnDevice:
    """A CPU tensor that says it is elsewhere."""

    def __init__(self, tensor: Any, device: Any) -> None:
        self.tensor = tensor
        self.device = device
        self.is_cpu = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def device_frame(name: str, runtime: Any, tensor: Any) -> Frame:
    import torch

    from omni_async.codec.tensors import _device_frame

    module = type("torch", (), {name: runtime})
    return _device_frame(module, OnDevice(tensor, torch.device(name, 1)), tensor.nbytes)


@pytest.mark.parametrize("strided", [False, True])
def test_a_device_copy_waits_for_the_stream_of_the_caller(strided: bool) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    tensor = tensor.t() if strided else tensor
    runtime = FakeRuntime()
    frame = device_frame("cuda", runtime, tensor)
    assert (frame.address, frame.nbytes, frame.device) == (0, 24, "cuda:1")
    assert runtime.diary == ["stream on cuda:1", "event recorded"]
    runtime.diary.clear()
    target = slot(24)
    frame.copy_into(target.data)
    assert runtime.diary == [
        "stream on cuda:1", "enter", "wait for event", "synchronised", "leave"
    ]  # fmt: skip
    assert torch.equal(torch.from_numpy(target).view(torch.bfloat16).view(tensor.shape), tensor)


def test_a_device_without_streams_is_just_copied() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12)
    for runtime in (None, object()):
        frame = device_frame("mps", runtime, tensor)
        assert (type(frame), frame.device) == (DeviceFrame, "mps:1")
        target = slot(96)
        frame.copy_into(target.data)
        assert torch.equal(torch.from_numpy(target).view(torch.int64), tensor)
        empty = device_frame("mps", runtime, tensor[:0])
        empty.copy_into(memoryview(b""))


def test_device_tensors_take_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from omni_async.codec import table, tensors
    from omni_async.codec.writer import Writer

    seen = []

    def device_frame(module: Any, value: Any, nbytes: int) -> Frame:
        seen.append((module, nbytes))
        return TensorFrame(nbytes, 0, value.tensor, "cuda:1")

    monkeypatch.setattr(tensors, "_device_frame", device_frame)
    write = tensors.writers(torch)[torch.Tensor]
    writer = Writer(table.WRITERS, table.find)
    write(writer, OnDevice(torch.ones(3), "cuda:1"), 0)
    assert seen == [(torch, 12)]
    assert writer.frames[0].device == "cuda:1"


@pytest.mark.hardware
def test_a_tensor_on_a_device() -> None:
    torch = pytest.importorskip("torch")
    assert torch.cuda.is_available()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        value = torch.zeros(1 << 22, device="cuda")
        for _ in range(100):
            value += 1
        received = trip({"x": value, "t": value.view(2, -1).t()})
    assert (received["x"] == 100).all()
    assert torch.equal(received["t"], value.view(2, -1).t().cpu())
