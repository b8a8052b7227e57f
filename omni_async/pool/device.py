"""Memory of a device, and host memory that a device reaches by itself.

In: a torch device. Out: blocks for a pool; what arrived in them as tensors of their own.
Never: imports torch, lets a slot go before the device has done with it.

Nothing here runs on a stream of the caller's: copies have one of their own, wait for what made their source,
and have ended when the call returns. All of them block: they belong in an executor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..abc.memory import Block, MemorySource
from .memory import AnonymousMemory, MappedBlock

if TYPE_CHECKING:
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["DeviceArray", "DeviceBlock", "DeviceMemory", "PinnedMemory"]


class DeviceArray:
    """Bytes on a device; a slice is one too. The first of them may be known on the host as well.

    Args:
        tensor: uint8, one dimension.
        head: copy of its first bytes, on the host.
    """

    __slots__ = ("head", "tensor")

    def __init__(self, tensor: Any, head: Bytes | None = None) -> None:
        self.tensor = tensor
        self.head = head

    @property
    def nbytes(self) -> int:
        nbytes: int = self.tensor.nbytes
        return nbytes

    def __getitem__(self, part: slice) -> DeviceArray | Bytes:
        start, end, _ = part.indices(self.nbytes)
        if self.head is not None and end <= self.head.nbytes:
            return self.head[start:end]
        return DeviceArray(self.tensor[start:end], None if start else self.head)

    def fetch(self) -> Bytes:
        """The same on the host; blocks."""
        found: Bytes = self.tensor.cpu().numpy()
        return found


class DeviceBlock(Block):
    """A block on a device, as one tensor."""

    fd = -1

    def __init__(self, tensor: Any, device: str, runtime: Any) -> None:
        self.tensor = tensor
        self.device = device
        self.address = tensor.data_ptr()
        self.nbytes = tensor.nbytes
        self._runtime = runtime

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        raise ValueError(f"memory of {self.device} cannot be seen from the host")

    def keep(self) -> Any:
        """The whole block as a tensor of uint8."""
        return self.tensor

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copies inside run on a stream of their own, and have ended afterwards."""
        runtime = self._runtime
        own = runtime.Stream(self.device)
        # What is allocated meanwhile may be memory that earlier work of this stream still reads.
        own.wait_stream(runtime.default_stream(self.device))
        with runtime.stream(own):
            yield
            own.synchronize()

    def lift(self, offset: int, nbytes: int, head: int) -> DeviceArray:
        """A range as memory of its own, so that the slot is free; blocks.

        Args:
            head: so many of its first bytes are copied to the host too.
        """
        slot = self.tensor[offset : offset + nbytes]
        found = slot.new_empty(nbytes)  # outside: it is to belong to the stream that will use it
        with self.copying():
            found.copy_(slot)
            first = slot[:head].cpu().numpy().copy()
        return DeviceArray(found, first)

    def discard(self, offset: int, nbytes: int) -> None:
        """Nothing: a device has no pages to give back."""

    def withdraw(self, offset: int, nbytes: int) -> None:
        """Keep the whole block for good: so nobody else gets these addresses."""
        _withdrawn.append(self.tensor)

    def close(self) -> None:
        """The memory goes with the last tensor of it."""


_withdrawn: list[Any] = []


class DeviceMemory(MemorySource):
    """Memory of one device.

    Args:
        device: as torch names it, such as ``cuda`` or ``cuda:1``.
        torch: the imported module.
        runtime: the device's part of it; ``torch.cuda`` for ``cuda:1``.
    """

    def __init__(self, device: str, torch: Any, runtime: Any = None) -> None:
        self.device = device
        self._torch = torch
        self._runtime = runtime or getattr(torch, device.partition(":")[0])

    def allocate(self, nbytes: int) -> DeviceBlock:
        """A new block; its bytes are what they are.

        Raises:
            MemoryError: the device has no room.
        """
        if nbytes <= 0:
            raise ValueError(f"a block has at least one byte, not {nbytes}")
        try:
            tensor = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self.device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise MemoryError(f"no memory of {nbytes:,} bytes on {self.device}: {error}") from error
        return DeviceBlock(tensor, self.device, self._runtime)


class PinnedBlock(Block):
    """A block of host memory that the device copies from and to without help."""

    fd = -1

    def __init__(self, block: MappedBlock, cudart: Any) -> None:
        self.address = block.address
        self.nbytes = block.nbytes
        self._block = block
        self._cudart = cudart
        self._pinned = True

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        return self._block.view(offset, nbytes)

    def discard(self, offset: int, nbytes: int) -> None:
        """Nothing: the device would go on with the old pages."""

    def withdraw(self, offset: int, nbytes: int) -> None:
        self._block.withdraw(offset, nbytes)

    def close(self) -> None:
        """Views stay, as ordinary memory."""
        if self._pinned:
            self._pinned = False
            self._cudart.cudaHostUnregister(self.address)
        self._block.close()


class PinnedMemory(MemorySource):
    """Private memory of this process, pinned for CUDA.

    Args:
        cuda: ``torch.cuda``, initialised.
    """

    def __init__(self, cuda: Any) -> None:
        self._cudart = cuda.cudart()
        self._plain = AnonymousMemory()

    def allocate(self, nbytes: int) -> PinnedBlock:
        """A new block of zeros; all its pages come now.

        Raises:
            MemoryError: the system refused it, or would not pin it.
        """
        block = self._plain.allocate(nbytes)
        status = int(self._cudart.cudaHostRegister(block.address, block.nbytes, 0))
        if status:
            block.close()
            raise MemoryError(f"CUDA does not pin {nbytes:,} bytes (status {status})")
        return PinnedBlock(block, self._cudart)
