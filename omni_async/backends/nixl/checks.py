"""What a transport needs of its machine, looked at before it opens.

In: options, and the machine. Out: nothing, or one error with what is missing and how to get it.
Never: changes anything, leaves something to be found out by the first transfer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ...errors import BackendUnavailable, ConfigError
from ..machine import device_trouble, version_of
from ._native import NAME, VARIANTS, load
from .config import NixlOptions

OLDEST = (1, 5)
"""Before, an agent has no time to sleep between two looks for work."""
INSTALL = (
    "without CUDA: pip install --no-deps nixl-cu12 (it asks for a PyTorch with CUDA, and needs none); "
    "with CUDA: pip install 'omni-async[nixl]'"
)


@dataclass(frozen=True)
class Machine:
    """Where to look."""

    root: Path = Path("/")
    load: Callable[[], ModuleType] = load
    version: Callable[[str], str | None] = version_of
    """Of an installed package; ``None`` where it is not installed."""
    device_trouble: Callable[[str], str | None] = device_trouble
    """Why a pool cannot be on a device."""


def device_of(options: NixlOptions) -> str:
    """Where the pool lives.

    Raises:
        ConfigError: two options say different things.
    """
    host = options.memory_type in ("DRAM", "cpu")
    device = options.receive_device or "cpu"
    if options.memory_type in ("VRAM", "cuda") and device == "cpu":
        if options.receive_device:
            raise ConfigError(
                f"memory_type is {options.memory_type}, and receive_device is cpu",
                path="memory_type",
            )
        return "cuda"
    if host and device != "cpu":
        raise ConfigError(
            f"memory_type is {options.memory_type}, and receive_device is {device}",
            path="memory_type",
        )
    return device


def pins(device: str, root: Path = Path("/")) -> bool:
    """Whether registered memory is pinned: where a card moves the bytes."""
    return device != "cpu" or any((root / "sys/class/infiniband").glob("*"))


def check(options: NixlOptions, machine: Machine | None = None) -> None:
    """Raise what is wrong, all at once.

    Raises:
        BackendUnavailable: something is missing here.
        ConfigError: options contradict each other.
    """
    machine = machine or Machine()
    device = device_of(options)
    found = list(problems(device, machine))
    if found:
        raise BackendUnavailable(
            f"{NAME}: {'; '.join(what for what, _ in found)}",
            backend=NAME,
            remedy="; ".join(remedy for _, remedy in found),
        )


def versions(machine: Machine) -> str:
    """The vendor's packages with their versions; empty where there are none."""
    packages = (*(one.replace("_", "-") for one in VARIANTS), "nixl")
    return ", ".join(f"{one} {found}" for one in packages if (found := machine.version(one)))


def problems(device: str, machine: Machine) -> Iterator[tuple[str, str]]:
    """What is wrong, and what to do about it."""
    try:
        module = machine.load()
    except ImportError as error:
        library = re.match(r"(lib\S+\.so[.\d]*): cannot open", str(error))
        if library is None:
            yield f"the package nixl-cu12 cannot be imported ({error})", INSTALL
        else:
            yield f"the library {library[1]} is missing", f"install what brings {library[1]}"
    else:
        if not hasattr(module.nixlAgentConfig, "pthrDelay"):
            wanted = ".".join(map(str, OLDEST))
            yield f"{versions(machine) or 'nixl'} is too old, {wanted} is needed", INSTALL
    if device != "cpu":
        trouble = machine.device_trouble(device)
        if trouble is not None:
            yield (
                f"there can be no pool on {device}: {trouble}",
                "install PyTorch for that device, or remove memory_type and receive_device",
            )
