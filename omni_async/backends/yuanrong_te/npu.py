"""The NPU of a transport, by PyTorch's extension for it.

In: its number. Out: memory of it, and word that it has nothing left to do.
Never: imports PyTorch before it is asked to.
"""

from __future__ import annotations

import importlib
from typing import Any

from ...abc import MemorySource
from ..machine import device_trouble, pool_memory

EXTENSION = "torch_npu"


def npu_trouble(device: str) -> str | None:
    """Why PyTorch cannot have memory on an NPU; ``None`` where it can."""
    try:
        importlib.import_module(EXTENSION)
    except ImportError as error:
        return f"the package {EXTENSION} cannot be imported ({error})"
    return device_trouble(device)


class Npu:
    """One of those that are visible to this process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.device = f"npu:{number}"

    def use(self) -> None:
        """For the calling thread; the vendor reads in no other."""
        self._runtime().set_device(self.number)

    def settle(self) -> None:
        """Wait until it has nothing left to do; blocks. What a failed read had begun is over then:
        bytes of a peer come into buffers of the vendor's, and from there by work that is queued here."""
        self._runtime().synchronize(self.device)

    def memory(self) -> MemorySource:
        """Where a pool on it comes from."""
        importlib.import_module(EXTENSION)  # it is what makes torch.npu
        return pool_memory(self.device)

    def _runtime(self) -> Any:
        importlib.import_module(EXTENSION)
        return importlib.import_module("torch").npu
