"""RDMA cards: which there are, whether their ports carry anything, whether they can be driven from here.

In: ``/sys/class/infiniband``, ``/dev/infiniband``, what `ibstat`, `ibv_devices` and `ibdev2netdev` print. Out: facts, findings.
Never: opens a card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...abc import Finding, Sight
from ...abc.findings import fault, ok, warning
from . import tools

DRIVER = (
    "install the card's user-space driver in the version of the kernel's driver and of its firmware "
    "(apt-get install ibverbs-providers, or the vendor's package)"
)
CONTAINER = "--device=/dev/infiniband -v /sys/class/infiniband:/sys/class/infiniband:ro"


class Port(NamedTuple):
    """One port of a card."""

    number: str
    state: str
    """``ACTIVE``, ``DOWN``, ``INIT``."""
    physical: str = ""
    rate: str = ""
    layer: str = ""
    """``InfiniBand`` or ``Ethernet``."""

    @property
    def active(self) -> bool:
        return self.state.upper() == "ACTIVE"


class Device(NamedTuple):
    """One card as the RDMA library names it."""

    name: str
    ports: tuple[Port, ...]
    driver: str = ""

    @property
    def active(self) -> bool:
        return any(port.active for port in self.ports)


def devices(sight: Sight) -> list[Device]:
    """What the kernel tells."""
    folder = sight.root / "sys/class/infiniband"
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
    return [Device(name, tuple(_ports(sight, name)), _driver(sight, name)) for name in names]


def nodes(sight: Sight) -> list[str]:
    """The device files by which a process reaches the cards."""
    return sorted(path.name for path in (sight.root / "dev/infiniband").glob("uverbs*"))


def ibstat(text: str) -> list[Device]:
    """What ``ibstat`` tells, for where ``/sys`` is hidden."""
    found: list[Device] = []
    for part in re.split(r"^CA '", text, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("'")
        ports = []
        for piece in re.split(r"^\s*Port (?=\d+:)", rest, flags=re.MULTILINE)[1:]:
            said = dict(re.findall(r"^\s*([A-Z][\w ]*?):\s*(.*?)\s*$", piece, re.MULTILINE))
            ports.append(
                Port(
                    piece.partition(":")[0],
                    said.get("State", "").upper(),
                    said.get("Physical state", ""),
                    said.get("Rate", ""),
                    said.get("Link layer", ""),
                )
            )
        found.append(Device(name, tuple(ports)))
    return found


def netdevs(text: str) -> dict[str, str]:
    """Device → network interface with its state, of ``ibdev2netdev``: ``mlx5_0 port 1 ==> eth2 (Up)``."""
    return {
        found[1]: f"{found[2]} ({found[3]})"
        for found in re.finditer(r"^(\S+) port \d+ ==> (\S+) \((\w+)\)", text, re.MULTILINE)
    }


def driveable(text: str) -> list[str]:
    """Devices that ``ibv_devices`` lists: those for which user space has a driver."""
    found = re.findall(r"^\s*(\S+)\s+[0-9a-fA-F]{16}\s*$", text, re.MULTILINE)
    return [name for name in found if not name.startswith("-")]


def mismatches(text: str) -> Iterator[Finding]:
    """What the RDMA library complains of: a driver of another version than the kernel's, or none at all."""
    for line in text.splitlines():
        abi = re.search(
            r"Driver (\S+) does not support the kernel ABI of (\d+) \(supports (\d+) to (\d+)\)"
            r"(?: for device (\S+))?",
            line,
        )
        if abi is not None:
            device = (abi[5] or "").rpartition("/")[2] or "a device"
            yield fault(
                "RDMA driver",
                f"the user-space driver {abi[1]} knows kernel interfaces {abi[3]} to {abi[4]}, and the kernel's for "
                f"{device} is {abi[2]}: engines find no device then (Mori: availDevices.size() > 0)",
                DRIVER,
                of_host=True,
            )
        none = re.search(r"no userspace device-specific driver found for (\S+)", line)
        if none is not None:
            device = none[1].rpartition("/")[2]
            yield fault(
                "RDMA driver", f"user space has no driver for {device}", DRIVER, of_host=True
            )


def named(value: str) -> list[str]:
    """Devices in a list such as ``mlx5_0,mlx5_1``."""
    return [name.strip() for name in value.split(",") if name.strip()]


def unknown(value: str, there: Iterable[Device], whence: str) -> Iterator[Finding]:
    """A fault for each named device that this host does not have.

    Args:
        whence: the option or variable that names it.
    """
    here = [device.name for device in there]
    for name in named(value):
        if name not in here:
            known = ", ".join(here) or "none"
            yield fault(
                whence,
                f"there is no RDMA device {name!r} (there are: {known})",
                f"correct {whence}; ibdev2netdev or ls /sys/class/infiniband lists them",
                absent=not here,
            )


def look(sight: Sight) -> tuple[list[Device], list[Finding]]:
    """The cards of this host and all that can be told of them without opening one; blocks while tools run."""
    found = devices(sight)
    told: list[Finding] = []
    stat = tools.asked(sight, "ibstat") if not found else None
    if stat is not None and stat.trouble is None:
        found = ibstat(stat.text)
    if not found:
        told.append(
            fault(
                "RDMA",
                "this host shows no RDMA device",
                "for protocol rdma install the card's driver, and show the cards to a container: "
                f"{CONTAINER}; TCP and shared memory need none",
                absent=True,
                of_host=True,
            )
        )
        return found, told
    told += _reachable(sight, found)
    told += _links(sight, found)
    told += _drivers(sight, found)
    return found, told


def _reachable(sight: Sight, found: Sequence[Device]) -> Iterator[Finding]:
    files = nodes(sight)
    if files:
        yield ok("RDMA device files", f"/dev/infiniband has {', '.join(files)}", of_host=True)
    else:
        names = ", ".join(device.name for device in found)
        yield fault(
            "RDMA device files",
            f"the kernel has {names}, and there is no /dev/infiniband/uverbs* by which to reach them",
            f"modprobe ib_uverbs; a container: {CONTAINER}",
            of_host=True,
        )


def _links(sight: Sight, found: Sequence[Device]) -> Iterator[Finding]:
    answer = tools.asked(sight, "ibdev2netdev")
    interfaces = netdevs(answer.text) if answer is not None and answer.trouble is None else {}
    for device in found:
        interface = f", {interfaces[device.name]}" if device.name in interfaces else ""
        driver = f", driver {device.driver}" if device.driver else ""
        for port in device.ports or (Port("?", "UNKNOWN"),):
            told = ", ".join(filter(None, (port.state, port.physical, port.rate, port.layer)))
            text = f"{device.name} port {port.number}: {told}{interface}{driver}"
            if port.active:
                yield ok("RDMA link", text, of_host=True)
            else:
                yield warning(
                    "RDMA link",
                    text,
                    f"see ibstat {device.name}, the cable and the switch (InfiniBand: a subnet manager); leave the "
                    "card out by device_name where it is not meant to be used",
                    of_host=True,
                )
    if not any(device.active for device in found):
        yield fault(
            "RDMA link",
            "no port of any RDMA device is active",
            "bring one up (ibstat shows why it is not), or use TCP",
            absent=True,
            of_host=True,
        )


def _drivers(sight: Sight, found: Sequence[Device]) -> Iterator[Finding]:
    answer = tools.asked(sight, "ibv_devices")
    if answer is None:
        yield warning(
            "RDMA driver",
            "ibv_devices is not installed, so what user space can drive was not looked at",
            "apt-get install ibverbs-utils",
            of_host=True,
        )
        return
    complaints = list(dict.fromkeys(mismatches(answer.errors + "\n" + answer.text)))
    yield from complaints
    if answer.trouble is not None:
        if not complaints:
            yield fault("RDMA driver", answer.trouble, DRIVER, of_host=True)
        return
    able = driveable(answer.text)
    without = [device.name for device in found if device.name not in able]
    if not without:
        yield ok("RDMA driver", f"user space drives {', '.join(able)}", of_host=True)
    elif not complaints:
        names = ", ".join(without)
        yield fault("RDMA driver", f"user space has no driver for {names}", DRIVER, of_host=True)


def _ports(sight: Sight, name: str) -> Iterator[Port]:
    folder = f"sys/class/infiniband/{name}/ports"
    try:
        numbers = sorted(path.name for path in (sight.root / folder).iterdir())
    except OSError:
        return
    for number in numbers:

        def said(what: str, at: str = f"{folder}/{number}") -> str:
            return sight.text(f"{at}/{what}").strip().rpartition(": ")[2]

        yield Port(number, said("state"), said("phys_state"), said("rate"), said("link_layer"))


def _driver(sight: Sight, name: str) -> str:
    path = sight.root / f"sys/class/infiniband/{name}/device/driver/module"
    try:
        module = path.resolve(strict=True).name
    except OSError:
        return ""
    version = sight.text(f"sys/module/{module}/version").strip()
    return f"{module} {version}".strip()
