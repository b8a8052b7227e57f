"""What checks of several backends ask of this machine.

In: names of packages and devices. Out: what is there, or why it cannot be used.
Never: raises for what is missing.
"""

from __future__ import annotations

from importlib import metadata


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
