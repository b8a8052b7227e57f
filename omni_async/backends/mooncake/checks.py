"""What a transport needs of its machine, looked at before it opens.

In: options, and the machine. Out: nothing, or one error with everything that is missing and how to get it.
Never: changes anything, leaves something to be found out by the first transfer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...abc import Sight
from ...errors import BackendUnavailable, ConfigError
from ..machine import device_trouble, version_of
from ..probes import limits, rdma
from ._native import NAME, load, rdma_devices
from .config import MooncakeTransferEngineOptions

PACKAGES = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
OLDEST = (0, 3, 13)
"""Before, a write over TCP ended when its last byte had left, not when it had arrived."""

_INSTALL = "pip install 'omni-async[mooncake]'"
_EITHER = f"{_INSTALL} (with CUDA: 'omni-async[mooncake-cuda]')"
_APT = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}


class Problem(NamedTuple):
    """One thing that is wrong."""

    what: str
    remedy: str
    setting: str = ""
    """The option or variable that contradicts the machine; empty where the machine lacks something."""
    absent: bool = False
    """It was never here, as against broken."""


@dataclass(frozen=True)
class Machine:
    """Where to look."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    memlock: Callable[[], int] = limits.memlock
    """Bytes that may be pinned."""
    load: Callable[[str], object] = load
    version: Callable[[str], str | None] = version_of
    """Of an installed package; ``None`` where it is not installed."""
    device_trouble: Callable[[str], str | None] = device_trouble
    """Why a pool cannot be on a device."""
    rdma_devices: Callable[[], list[str]] = rdma_devices
    """Devices that the RDMA library can drive."""


def check(
    options: MooncakeTransferEngineOptions,
    machine: Machine | None = None,
    *,
    backend: str = NAME,
    names: Mapping[str, str] | None = None,
) -> None:
    """Raise what is wrong, all at once.

    Args:
        backend: who wants to know.
        names: how the options are called there.

    Raises:
        BackendUnavailable: something is missing here.
        ConfigError: nothing is missing, but settings contradict each other or the machine.
    """
    machine = machine or Machine()
    found = list(_problems(options, machine))
    if not found:
        return
    text = "; ".join(problem.what for problem in found)
    remedy = "; ".join(dict.fromkeys(problem.remedy for problem in found))
    if any(not problem.setting for problem in found):
        raise BackendUnavailable(f"{backend}: {text}", backend=backend, remedy=remedy)
    setting = found[0].setting
    raise ConfigError(f"{backend}: {text}; {remedy}", path=(names or {}).get(setting, setting))


def named_devices(options: MooncakeTransferEngineOptions, environ: Mapping[str, str]) -> list[str]:
    """The RDMA devices to use; all of them where it is empty."""
    return rdma.named(options.device_name or environ.get("RDMA_DEVICE_NAME", ""))


def _problems(options: MooncakeTransferEngineOptions, machine: Machine) -> Iterator[Problem]:
    package = package_problem(machine, options.host)
    if package is not None:
        yield package
    yield from environment_problems(options.protocol, machine.environ)
    if options.memory_pool_device != "cpu":
        yield from device_problems(
            options.memory_pool_device, machine, options.host, loaded=package is None
        )
    if options.protocol == "rdma":
        yield from rdma_problems(options, machine, loaded=package is None)
        yield from pinning_problems(options, machine)


def package_problem(machine: Machine, host: str) -> Problem | None:
    """Why the vendor's package cannot be used."""
    try:
        machine.load(host)
    except ImportError as error:
        library = re.match(r"(lib\S+\.so[.\d]*): cannot open", str(error))
        if library is None:
            here = any(machine.version(name) is not None for name in PACKAGES)
            text = f"the package {PACKAGES[0]} cannot be imported ({error})"
            return Problem(text, _EITHER, absent=not here)
        name = library[1]
        if name.startswith(("libcuda", "libcudart")):
            remedy = f"pip uninstall {PACKAGES[1]}, then {_INSTALL}"
            return Problem(f"{PACKAGES[1]} needs {name}, and there is no CUDA here", remedy)
        package = _APT.get(name, f"the package with {name}")
        return Problem(f"the library {name} is missing", f"apt-get install {package}")
    versions = {name: machine.version(name) for name in PACKAGES}
    if all(versions.values()):
        return Problem(
            f"{' and '.join(PACKAGES)} are both installed, and have overwritten each other's files",
            f"pip uninstall {' '.join(PACKAGES)}, then {_EITHER}",
        )
    for name, version in versions.items():
        if version is None:
            continue
        if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            return Problem(
                f"{name} {version} is too old, from {wanted} on a write ends when its bytes are there",
                f"pip install '{name}>={wanted}'",
            )
    return None


def environment_problems(protocol: str, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Variables under which the engine would do something else than the options say."""
    wrong = {"MC_USE_TENT": "another engine", "MC_USE_TEV1": "another engine"}
    if protocol == "tcp":
        wrong["MC_FORCE_HCA"] = "RDMA"
    else:
        wrong["MC_FORCE_TCP"] = "TCP"
    for name, effect in wrong.items():
        if name in environ:
            yield Problem(
                f"the variable {name} makes it use {effect}, not protocol {protocol}",
                f"unset {name}",
                name,
            )
    if "MC_DISABLE_METACACHE" in environ:
        yield Problem(
            "with the variable MC_DISABLE_METACACHE every write asks its peer before it begins",
            "unset MC_DISABLE_METACACHE",
            "MC_DISABLE_METACACHE",
        )
    if protocol == "tcp" and environ.get("MC_TCP_PROTO") == "1":
        yield Problem(
            "with the variable MC_TCP_PROTO=1 a write ends before its bytes are there",
            "unset MC_TCP_PROTO",
            "MC_TCP_PROTO",
        )


def device_problems(device: str, machine: Machine, host: str, *, loaded: bool) -> Iterator[Problem]:
    """Why there can be no pool on a device."""
    trouble = machine.device_trouble(device)
    if trouble is not None:
        yield Problem(
            f"there can be no pool on {device}: {trouble}",
            "install PyTorch for that device, or use memory_pool_device: cpu",
            absent=True,
        )
    built = f"SUPPORT_{device.partition(':')[0].upper()}"
    if loaded and getattr(machine.load(host), built, True) is False:
        yield Problem(
            f"this build of Mooncake does not reach memory of {device}",
            f"pip uninstall {PACKAGES[0]}, then pip install 'omni-async[mooncake-cuda]'",
        )


def rdma_problems(
    options: MooncakeTransferEngineOptions, machine: Machine, *, loaded: bool
) -> Iterator[Problem]:
    """Why the engine would find no card that carries anything."""
    sight = Sight(machine.root, machine.environ)
    if not rdma.nodes(sight):
        yield Problem(
            "protocol rdma needs /dev/infiniband, which is not here",
            "install the driver of the RDMA card, and give a container --device=/dev/infiniband; "
            "or use protocol tcp",
        )
        return
    cards = {card.name: card for card in rdma.devices(sight)}
    here = list(cards)
    named = named_devices(options, machine.environ)
    for name in named:
        if name not in here:
            known = ", ".join(here) or "none"
            yield Problem(
                f"there is no RDMA device {name!r} (there are: {known})",
                "correct device_name or RDMA_DEVICE_NAME",
                "device_name",
            )
    active = [name for name in named or here if name in cards and cards[name].active]
    if not active:
        yield Problem(
            f"no port of the RDMA devices {', '.join(named or here) or '(there are none)'} is active",
            "see ibstat, and mount /sys/class/infiniband into a container",
        )
    elif loaded and not set(active) & set(machine.rdma_devices()):
        yield Problem(
            f"the RDMA library has no driver for {', '.join(active)}",
            "apt-get install ibverbs-providers",
        )


def pinning_problems(options: MooncakeTransferEngineOptions, machine: Machine) -> Iterator[Problem]:
    """Whether the pool may be pinned."""
    size = options.memory_pool_size
    if options.memory_pool_device != "cpu" or size is None:
        return
    sight = Sight(machine.root, machine.environ)
    limit = limits.pinning(sight, size, machine.memlock())
    if limit.status == "fault":
        yield Problem(limit.seen, limit.remedy)
    free = _free_memory(sight)
    if free is not None and free < size:
        yield Problem(
            f"memory_pool_size is {size:,} bytes, but only {free:,} bytes are free to be pinned",
            "lower memory_pool_size",
            "memory_pool_size",
        )


def _free_memory(sight: Sight) -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", sight.text("proc/meminfo"), re.MULTILINE)
    return None if found is None else int(found[1]) * 1024
