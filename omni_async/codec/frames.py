"""Frames: the buffers of a payload, still in the caller's memory.

In: objects that own memory. Out: where the bytes lie, or a way to put them somewhere.
Never: copies before it is told where to.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Protocol

import msgspec
import numpy as np

from ..errors import UsageError


class RawBuffer(Protocol):
    """An object whose bytes are a payload of their own; see ``register_buffer``."""

    @property
    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Its bytes: uint8, one dimension, contiguous."""
        ...


class Frame(msgspec.Struct, eq=False):
    """One buffer. This class is contiguous CPU memory; its subclasses have ``address`` 0."""

    nbytes: int
    address: int
    """First byte in CPU memory, or 0 where the bytes do not lie there one after another."""
    keep: Any
    """Owns the memory; bytes are valid as long as this lives."""
    device: str = "cpu"

    def copy_into(self, target: memoryview) -> None:
        """Put the bytes into ``target``, which has exactly ``nbytes``. Blocks; safe in any thread.

        Raises:
            UsageError: ``target`` has another length.
        """
        if _fits(target, self.nbytes):
            start = ctypes.addressof(ctypes.c_char.from_buffer(target))
            ctypes.memmove(start, self.address, self.nbytes)

    def copy_onto(self, target: Any) -> None:
        """The same onto a device: ``target`` is a torch tensor of uint8 with one dimension, on a 64-byte
        boundary. Uses the current stream, and may return before it is done.
        """
        torch: Any = sys.modules["torch"]
        if _fits(target, self.nbytes):
            host = bytearray(self.nbytes)
            self.copy_into(memoryview(host))
            target.copy_(torch.frombuffer(host, dtype=torch.uint8))


class ArrayFrame(Frame):
    """A numpy array that is not contiguous; ``keep`` is the array."""

    def copy_into(self, target: memoryview) -> None:
        if _fits(target, self.nbytes):
            # As opaque items: padding inside structured items is copied, not left as it was.
            items = self.keep.view(f"V{self.keep.dtype.itemsize}")
            np.copyto(np.ndarray(items.shape, items.dtype, target), items)


class TensorFrame(Frame):
    """A torch CPU tensor that is strided, conjugated or negated; ``keep`` is the tensor."""

    def copy_into(self, target: memoryview) -> None:
        if _fits(target, self.nbytes):
            self._copy(target)

    def copy_onto(self, target: Any) -> None:
        if _fits(target, self.nbytes):
            self._land(target)

    def _copy(self, target: memoryview) -> None:
        torch: Any = sys.modules["torch"]
        self._land(torch.frombuffer(target, dtype=torch.uint8))

    def _land(self, target: Any) -> None:
        """Copy onto bytes of any device."""
        torch: Any = sys.modules["torch"]
        source = self.keep.detach()
        if not (source.is_complex() or source.is_neg()):
            # Plain items are moved as integers: some narrow types have no copy of their own.
            source = source.view(getattr(torch, f"int{8 * source.itemsize}"))
        target.view(source.dtype).view(source.shape).copy_(source)


class DeviceFrame(TensorFrame):
    """A torch tensor on a device; ``keep`` is the tensor.

    The copy runs in another thread, whose streams know nothing of the work that makes the tensor. So it
    waits for ``ready``, an event of the stream that was current when the value was encoded, and runs on
    a stream of its own: not behind work that was submitted since.
    """

    runtime: Any = None
    """The device's module, such as ``torch.cuda``."""
    ready: Any = None

    def copy_onto(self, target: Any) -> None:
        if self.ready is not None:
            self.runtime.current_stream(target.device).wait_event(self.ready)
        super().copy_onto(target)

    def _copy(self, target: memoryview) -> None:
        if self.ready is None:
            super()._copy(target)
            return
        stream = self.runtime.Stream(self.keep.device)
        with self.runtime.stream(stream):
            stream.wait_event(self.ready)
            super()._copy(target)
            stream.synchronize()


class ImageFrame(Frame):
    """The pixels of a PIL image; ``keep`` is the image."""

    def copy_into(self, target: memoryview) -> None:
        if _fits(target, self.nbytes):
            target[:] = self.keep.tobytes()


class Encoded(msgspec.Struct, frozen=True, eq=False):
    """A value as header and frames."""

    header: bytes
    frames: list[Frame]
    fast: bool
    """The whole value is one buffer: ``frames[0]``, the only one."""
    nbytes: int
    """Payload size without alignment: of that buffer if ``fast``, else of header and frames."""


def array_frame(array: np.ndarray[Any, Any]) -> Frame:
    """The frame of an array's items in C order."""
    if array.flags.c_contiguous:
        return Frame(array.nbytes, array.__array_interface__["data"][0], array)
    return ArrayFrame(array.nbytes, 0, array)


def bytes_frame(data: bytes | bytearray | memoryview) -> Frame:
    """The frame of bytes; holds their buffer, so that a ``bytearray`` cannot be resized meanwhile."""
    return array_frame(np.frombuffer(data, np.uint8))


def _fits(target: memoryview, nbytes: int) -> bool:
    """Whether there is anything to copy."""
    if target.nbytes != nbytes:
        raise UsageError(f"a frame of {nbytes} bytes does not fit a target of {target.nbytes}")
    return nbytes > 0
