"""Memory: where the bytes of a pool come from.

In: lengths. Out: blocks of mapped memory.
Never: knows leases, keys or peers.
"""

from __future__ import annotations

import abc
from typing import Any


class Block(abc.ABC):
    """Mapped memory; stays mapped until :meth:`close` was called and no view is left."""

    address: int
    nbytes: int
    fd: int
    """Descriptor that backs the memory, or -1."""
    device: str = "cpu"

    @abc.abstractmethod
    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Writable bytes of the block; not for memory of a device."""

    def keep(self) -> Any:
        """What keeps the memory, however long, and can be sliced by bytes: :meth:`view`, or a tensor."""
        return self.view()

    @abc.abstractmethod
    def discard(self, offset: int, nbytes: int) -> None:
        """Give the pages inside the range back to the system; they read as zeros afterwards."""

    @abc.abstractmethod
    def withdraw(self, offset: int, nbytes: int) -> None:
        """Take whole pages away for good: who reads or writes there gets an error, this process too, or
        other pages that nobody looks at.

        Their addresses are never used again, not even after the block was closed, so a write that comes
        late lands nowhere.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Unmap when the last view is gone, close the descriptor now. Idempotent."""


class MemorySource(abc.ABC):
    """Makes blocks of one kind of memory."""

    device: str = "cpu"

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """A new block.

        Raises:
            MemoryError: the system refused.
        """
