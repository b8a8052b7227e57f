"""What several backends ask of this machine.

In: names of packages and devices. Out: what is there, or why it cannot be used; memory for pools.
Never: raises for what is missing.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

from ..abc import MemorySource
from ..pool.device import DeviceMemory, PinnedMemory
from ..pool.memory import AnonymousMemory

DEVICE_POOL = 2 << 30
"""Bytes of a pool on a device, unless said otherwise: a GPU's memory has better uses."""


def version_of(package: str) -> str | None:
    """Of an installed package; ``None`` where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device_trouble(device: str) -> str | None:
    """Why PyTorch cannot have memory on a device; ``None`` where it can."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch cannot be imported ({error})"
    kind, _, number = device.partition(":")
    runtime = getattr(torch, kind, None)
    if runtime is None or not runtime.is_available():
        return f"PyTorch finds no {kind} here"
    count = runtime.device_count()
    return None if int(number or 0) < count else f"there are {count} of them"


def cuda_in_use() -> Any:
    """``torch.cuda`` where this process uses it; who does not gains nothing by pinned memory."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def pool_memory(device: str) -> MemorySource:
    """Where the pool's segments come from: a device, or the host, for engines that pin it anyway."""
    if device != "cpu":
        import torch

        return DeviceMemory(device, torch)
    cuda = cuda_in_use()
    return AnonymousMemory() if cuda is None else PinnedMemory(cuda)
