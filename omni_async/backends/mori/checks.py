"""What a transport needs of its machine, looked at before it opens.

In: options, and the machine. Out: nothing, or one error with everything that is missing and how to get it; findings.
Never: changes anything, leaves something to be found out by the first transfer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from ...abc import Finding, Sight
from ...abc.findings import fault, ok, warning
from ...errors import BackendUnavailable
from ..machine import device_trouble, version_of
from ..probes import limits, rdma, topology, variables
from ._native import DEVICES, NAME, PACKAGE, load
from .config import MoriTransferEngineOptions

INSTALL = (
    f"pip install 'omni-async[mori]', which brings {PACKAGE}, on a machine with ROCm 7 (wheels are for CPython 3.10 "
    "on glibc 2.35 and CPython 3.12 on glibc 2.39; the package that is called mori is another one)"
)
KERNEL = (
    "install ROCm with its kernel driver, and give a container --device=/dev/kfd --device=/dev/dri"
)
NUMBERS = ("MORI_IO_QP_MAX_SEND_WR", "MORI_IO_QP_MAX_CQE")


@dataclass(frozen=True)
class Machine:
    """Where to look."""

    sight: Sight = field(default_factory=Sight)
    load: Callable[[], ModuleType] = load
    version: Callable[[str], str | None] = version_of
    """Of an installed package; ``None`` where it is not installed."""
    device_trouble: Callable[[str], str | None] = device_trouble
    """Why a pool cannot be on a device."""
    rdma: Callable[[Sight], tuple[list[rdma.Device], list[Finding]]] = rdma.look
    memlock: Callable[[], int] = limits.memlock


def check(options: MoriTransferEngineOptions, machine: Machine | None = None) -> None:
    """Raise what is wrong, all at once.

    Raises:
        BackendUnavailable: something is missing here.
    """
    wrong = [one for one in needs(options, machine or Machine()) if one.status == "fault"]
    if wrong:
        raise BackendUnavailable(
            f"{NAME}: {'; '.join(one.seen for one in wrong)}",
            backend=NAME,
            remedy="; ".join(dict.fromkeys(one.remedy for one in wrong)),
        )


def needs(options: MoriTransferEngineOptions, machine: Machine) -> Iterator[Finding]:
    """What has to be here for these options."""
    yield _package(machine)
    if options.memory_pool_device != "cpu":
        yield _device(options.memory_pool_device, machine)
    if options.backend_type == "rdma":
        yield from _cards(options, machine)
        if options.memory_pool_device == "cpu" and options.memory_pool_size is not None:
            # The vendor ends the process when the system refuses to pin.
            yield limits.pinning(machine.sight, options.memory_pool_size, machine.memlock())


def examine(options: MoriTransferEngineOptions, machine: Machine | None = None) -> list[Finding]:
    """All that can be told of this machine for these options: what is needed, and what is only worth knowing."""
    machine = machine or Machine()
    environ = machine.sight.environ
    told = list(needs(options, machine))
    if options.backend_type == "xgmi":
        told += _links(machine)
        if options.device_name or environ.get(DEVICES):
            told.append(ok("device_name", f"not read with xgmi, nor is {DEVICES}"))
    else:
        ways, _ = topology.look(machine.sight)
        if ways is not None:
            cards = rdma.named(named_devices(options, environ))
            told += topology.advice(ways, options.memory_pool_device, cards)
        for name in NUMBERS:
            told += variables.number(environ, name)
    return told


def named_devices(options: MoriTransferEngineOptions, environ: Mapping[str, str]) -> str:
    """The RDMA devices to use, as the vendor takes them; all where it is empty."""
    return options.device_name or environ.get(DEVICES, "")


def _package(machine: Machine) -> Finding:
    version = machine.version(PACKAGE)
    try:
        module = machine.load()
    except ImportError as error:
        library = re.match(r"(lib\S+\.so[.\d]*): cannot open", str(error))
        if library is not None:
            return fault(
                "package",
                f"the library {library[1]} is missing, which {PACKAGE} needs",
                f"install what brings {library[1]} (ROCm 7 brings libamdhip64.so.7), and name its folder in "
                "LD_LIBRARY_PATH",
                absent=True,
            )
        if str(error).startswith("No module named 'torch"):
            return fault(
                "package",
                f"{PACKAGE} needs PyTorch ({error})",
                "install PyTorch for ROCm",
                absent=True,
            )
        return fault(
            "package",
            f"the package {PACKAGE} cannot be imported ({error})",
            INSTALL,
            absent=version is None,
        )
    except OSError as error:  # it loads its libraries by hand
        return fault("package", f"{PACKAGE} cannot load its libraries ({error})", INSTALL)
    if not hasattr(module, "IOEngine"):
        return fault("package", f"the module mori is not that of {PACKAGE}", INSTALL)
    told = f"{PACKAGE} {version or '(version unknown)'}"
    if not wakes(module):
        return warning(
            "package",
            f"{told} tells of a transfer's end only when it is asked, and begins one with the interpreter's lock "
            "held: a receiver that does not answer its first connection stops this process for so long",
            f"pip install '{PACKAGE}>=1.2'",
        )
    return ok("package", told)


def wakes(module: ModuleType) -> bool:
    """Whether it is 1.2 or newer, which wakes whoever waits for an end."""
    return hasattr(module, "wait_all") or hasattr(module.IOEngine, "wait_all")


def _device(device: str, machine: Machine) -> Finding:
    trouble = machine.device_trouble(device)
    if trouble is not None:
        return fault(
            "memory_pool_device",
            f"there can be no pool on {device}: {trouble}",
            f"install PyTorch for ROCm; {KERNEL}",
            absent=True,
        )
    return ok("memory_pool_device", f"PyTorch has {device}")


def _cards(options: MoriTransferEngineOptions, machine: Machine) -> Iterator[Finding]:
    there, told = machine.rdma(machine.sight)
    yield from told
    wanted = named_devices(options, machine.sight.environ)
    whence = "device_name" if options.device_name else DEVICES
    if wanted.startswith("^"):
        excluded = rdma.named(wanted[1:])
        left = [one for one in there if one.name not in excluded]
    else:
        yield from rdma.unknown(wanted, there, whence)
        left = [one for one in there if not wanted or one.name in rdma.named(wanted)]
    if there and left and not any(one.active for one in left):
        yield fault(
            whence,
            f"no port of {', '.join(one.name for one in left)} is active",
            f"see ibstat, or name others by {whence}",
        )
    elif there and wanted.startswith("^") and not left:
        yield fault(whence, f"{wanted} leaves no RDMA device", f"correct {whence}")


def _links(machine: Machine) -> Iterator[Finding]:
    if not (machine.sight.root / "dev/kfd").exists():
        yield fault("GPU driver", "there is no /dev/kfd", KERNEL, absent=True, of_host=True)
    ways, told = topology.look(machine.sight)
    yield from told
    if ways is not None and ways.gpus:
        if topology.between(ways, "XGMI"):
            yield ok("GPU links", "all GPUs are joined by XGMI", of_host=True)
        else:
            yield warning(
                "GPU links",
                "not all GPUs are joined by XGMI",
                "choose devices that are (rocm-smi --showtopo), or use backend_type: rdma",
                of_host=True,
            )
