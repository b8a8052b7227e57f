"""What a transport needs of its machine, looked at before it opens.

In: options, and where to look. Out: findings; for an opening, one error with all that is at fault.
Never: changes anything, runs on the event loop: tools are asked, each within its time limit.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType

from ...abc import Finding, Sight
from ...abc.findings import fault, ok
from ...abc.ranks import DEVICES, device_from
from ...errors import BackendUnavailable, ConfigError
from ..machine import version_of
from ..probes.tools import asked
from . import hccn
from ._native import NAME, PACKAGE, load
from .config import YuanrongTransferEngineOptions
from .npu import EXTENSION, npu_trouble

INSTALL = "pip install 'omni-async[yuanrong]'"
CANN = "source /usr/local/Ascend/ascend-toolkit/set_env.sh, where CANN is installed"
DRIVER = "/usr/local/Ascend/driver/tools"
"""Where the driver puts its tools; few have it in their ``PATH``."""
TOOL_LIMIT = 5.0
"""Seconds for one question."""
PING_LIMIT = 10.0
"""Seconds for one address: three packets, and their time limits."""
MOST_PAIRS = 64
"""Pairs of NPUs that are tried."""
AT_ONCE = 32
"""Tools that run at a time: each one only waits for its NPU."""


@dataclass(frozen=True)
class Machine:
    """Where to look."""

    sight: Sight = field(default_factory=Sight)
    load: Callable[[], ModuleType] = load
    version: Callable[[str], str | None] = version_of
    """Of an installed package; ``None`` where it is not installed."""
    npu_trouble: Callable[[str], str | None] = npu_trouble
    """Why a pool cannot be on an NPU."""

    def ask(self, *arguments: str, limit: float | None = None) -> str | None:
        """What ``hccn_tool`` printed, or why it is not to be believed; ``None`` where there is none."""
        environ = self.sight.environ
        path = f"{environ.get('PATH', '')}:{self.sight.root / DRIVER.lstrip('/')}"
        sight = Sight(self.sight.root, {**environ, "PATH": path})
        answer = asked(sight, hccn.TOOL, *arguments, limit=limit or TOOL_LIMIT)
        if answer is None:
            return None
        return f"{answer.text}\n{answer.errors}".strip() or answer.trouble or ""


def device_of(options: YuanrongTransferEngineOptions, environ: Mapping[str, str]) -> int:
    """The NPU among those that this process sees.

    Raises:
        ConfigError: two options say different things, or a variable holds no rank.
    """
    pool = options.memory_pool_device.partition(":")[2]
    named = options.device_name.partition(":")[2]
    if not named:
        return int(pool) if pool else device_from(environ)
    if pool and int(pool) != int(named):
        raise ConfigError(
            f"{NAME}: memory_pool_device is {options.memory_pool_device}, device_name {options.device_name}: "
            "the engine reaches memory of its own NPU only",
            path="memory_pool_device",
        )
    return int(named)


def on_host(number: int, environ: Mapping[str, str]) -> int:
    """What the host calls an NPU that this process calls ``number``: tools know no others."""
    listed = [one.strip() for one in environ.get(DEVICES[0], "").split(",") if one.strip()]
    fine = number < len(listed) and listed[number].isdigit()
    return int(listed[number]) if fine else number


def check(options: YuanrongTransferEngineOptions, number: int, machine: Machine) -> str:
    """Raise what is wrong, all at once; the NPU's address in the network of NPUs.

    Raises:
        BackendUnavailable: something is missing here, or does not work.
        ConfigError: the options do not fit this machine.
    """
    check_host(options)
    address, told = own(number, machine)
    faults = [one for one in (*libraries(number, machine), *told) if one.status == "fault"]
    if faults:
        raise BackendUnavailable(
            f"{NAME}: {'; '.join(f'{one.subject}: {one.seen}' for one in faults)}",
            backend=NAME,
            remedy="; ".join(dict.fromkeys(one.remedy for one in faults)),
        )
    return address


def check_host(options: YuanrongTransferEngineOptions) -> None:
    """Raise for an address that the vendor cannot listen at.

    Raises:
        ConfigError: it is no IPv4 address.
    """
    try:
        ipaddress.IPv4Address(options.host)
    except ValueError:
        raise ConfigError(
            f"{NAME}: the engine listens on IPv4 only, and host is {options.host}; write the host's IPv4 address",
            path="host",
        ) from None


def libraries(number: int, machine: Machine) -> Iterator[Finding]:
    """The vendor's package, and PyTorch for the NPU."""
    try:
        machine.load()
    except ImportError as error:
        yield _lacking("package", PACKAGE, error, INSTALL, machine.version(PACKAGE))
    else:
        yield ok("package", f"{PACKAGE} {machine.version(PACKAGE) or 'of no known version'}")
    device = f"npu:{number}"
    trouble = machine.npu_trouble(device)
    if trouble is None:
        yield ok("memory_pool_device", f"PyTorch has {device}")
    else:
        remedy = f"install CANN and the {EXTENSION} that fits your PyTorch; {CANN}"
        seen = f"there can be no pool on {device}: {trouble}"
        yield fault("memory_pool_device", seen, remedy, absent=True)


def examine(number: int, machine: Machine) -> list[Finding]:
    """All that can be seen of a host: packages, its NPUs, and whether each reaches all others; blocks."""
    told = [*devices(machine), *libraries(number, machine)]
    return [*told, *(all_here(machine) if npus(machine) else own(number, machine)[1])]


def own(number: int, machine: Machine) -> tuple[str, list[Finding]]:
    """Address, link and network of the NPU of this process."""
    npu = on_host(number, machine.sight.environ)
    printed = machine.ask("-i", str(npu), "-ip", "-g")
    if printed is None:
        return "", [_no_tool()]
    address = hccn.ip(npu, printed)
    return address.text, [
        address.finding,
        hccn.link(npu, machine.ask("-i", str(npu), "-link", "-g") or ""),
        hccn.net_health(npu, machine.ask("-i", str(npu), "-net_health", "-g") or ""),
    ]


def all_here(machine: Machine) -> Iterator[Finding]:
    """The same of all NPUs that this process may see, and whether each reaches all others."""
    numbers = npus(machine)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        addresses: dict[int, str] = {}
        each = threads.map(lambda npu: own_of_host(npu, machine), numbers)
        for npu, (address, told) in zip(numbers, each, strict=True):
            yield from told
            if address:
                addresses[npu] = address
        pairs = [
            (npu, there) for npu in addresses for other, there in addresses.items() if other != npu
        ]
        yield from threads.map(lambda pair: reach(pair[0], pair[1], machine), pairs[:MOST_PAIRS])


def own_of_host(npu: int, machine: Machine) -> tuple[str, list[Finding]]:
    """:func:`own` by the host's number."""
    environ = {k: v for k, v in machine.sight.environ.items() if k != DEVICES[0]}
    plain = Machine(Sight(machine.sight.root, environ), machine.load, machine.version)
    return own(npu, plain)


def reach(npu: int, address: str, machine: Machine) -> Finding:
    """Whether an NPU, by the host's number, reaches an address of another one."""
    arguments = ("-i", str(npu), "-ping", "-g", "address", address)
    printed = machine.ask(*arguments, limit=PING_LIMIT)
    return _no_tool() if printed is None else hccn.ping(npu, address, printed)


def npus(machine: Machine) -> list[int]:
    """By the host's numbers: those that this process may see, else all that have a device file."""
    listed = machine.sight.environ.get(DEVICES[0], "")
    found = [int(one) for one in listed.split(",") if one.strip().isdigit()]
    if not found:
        names = (path.name for path in (machine.sight.root / "dev").glob("davinci*"))
        found = [int(name[len("davinci") :]) for name in names if name[len("davinci") :].isdigit()]
    return sorted(found)


def devices(machine: Machine) -> Iterable[Finding]:
    """Whether there are NPUs at all."""
    found = npus(machine)
    if found:
        return [ok("NPUs", ", ".join(map(str, found)), of_host=True)]
    return [
        fault(
            "NPUs",
            "there are none (no /dev/davinci*)",
            "install the Ascend driver, and give a container its devices: --device=/dev/davinci0 and so on, "
            "/dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc",
            absent=True,
            of_host=True,
        )
    ]


def _lacking(
    subject: str, package: str, error: ImportError, install: str, version: str | None
) -> Finding:
    library = re.search(r"(lib\S+?\.so[.\d]*): cannot open", str(error))
    if library is None:
        seen = f"the package {package} cannot be imported ({error})"
        return fault(subject, seen, install, absent=version is None)
    name = library[1]
    brings = {
        "libpython": "apt-get install libpython3.X for this Python",
        "libexpat": "apt-get install libexpat1",
    }
    remedy = next((how for start, how in brings.items() if name.startswith(start)), CANN)
    return fault(subject, f"the library {name} is missing", remedy)


def _no_tool() -> Finding:
    return fault(
        hccn.TOOL,
        "it is not here, so nothing is known of the network of the NPUs",
        f"install the Ascend driver, or mount {DRIVER} and /etc/hccn.conf into the container",
        absent=True,
        of_host=True,
    )
