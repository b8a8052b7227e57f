"""What ``hccn_tool`` says of an NPU's own network, understood.

In: what the tool printed. Out: facts, and findings in words.
Never: runs it.

The bytes of ``protocol: ascend`` travel between the NPUs' own ports, not by the host's network: each NPU needs
an address and a link of its own, and each needs to reach the others.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from ...abc import Finding
from ...abc.findings import fault, ok, warning

TOOL = "hccn_tool"


class Address(NamedTuple):
    """An NPU's address in the network of NPUs; ``text`` is empty where it has none."""

    text: str
    finding: Finding


def ip(npu: int, printed: str) -> Address:
    """``hccn_tool -i N -ip -g``."""
    subject = f"NPU {npu} address"
    set_it = f"{TOOL} -i {npu} -ip -s address A netmask M, with addresses of one IPv4 network for all NPUs"
    found = re.search(r"\bip_?addr\s*:\s*([0-9A-Fa-f.:]+)", printed)
    if found is None:
        if "no ip was preset" in printed:
            seen = "no address is set, so it reaches no other NPU and the engine cannot connect"
        else:
            seen = f"its address is not known ({_said(printed)})"
        return Address("", fault(subject, seen, set_it, of_host=True))
    try:
        address = ipaddress.ip_address(found[1])
    except ValueError:
        return Address("", fault(subject, f"{found[1]} is no address", set_it, of_host=True))
    if address.version == 6:
        finding = warning(
            subject,
            f"{address} is IPv6, and the engine of openyuanrong-datasystem 0.8.1 asks for IPv4",
            f"{set_it}; or see that your build of the engine takes IPv6 between NPUs",
            of_host=True,
        )
    else:
        finding = ok(subject, str(address), of_host=True)
    return Address(str(address), finding)


def link(npu: int, printed: str) -> Finding:
    """``hccn_tool -i N -link -g``."""
    subject = f"NPU {npu} link"
    found = re.search(r"link status\s*:\s*(\w+)", printed, re.IGNORECASE)
    state = found[1].upper() if found else ""
    if state == "UP":
        return ok(subject, "up", of_host=True)
    return fault(
        subject,
        "down" if state == "DOWN" else f"its state is not known ({_said(printed)})",
        f"see its cable and module, and the port of the switch; {TOOL} -i {npu} -optical -g and "
        f"{TOOL} -i {npu} -link_stat -g tell more",
        of_host=True,
    )


def net_health(npu: int, printed: str) -> Finding:
    """``hccn_tool -i N -net_health -g``."""
    subject = f"NPU {npu} network"
    found = re.search(r"net health status\s*:\s*(.+)", printed, re.IGNORECASE)
    state = found[1].strip() if found else ""
    if state.lower() == "success":
        return ok(subject, "healthy", of_host=True)
    return warning(
        subject,
        f"its health is {state or f'not known ({_said(printed)})'}",
        f"{TOOL} -i {npu} -netdetect -s address A, with an address that it has to reach such as its gateway; "
        f"then {TOOL} -i {npu} -ping -g address A for each NPU that it exchanges bytes with",
        of_host=True,
    )


def ping(npu: int, address: str, printed: str) -> Finding:
    """``hccn_tool -i N -ping -g address A``: good enough only where nothing is lost."""
    subject = f"NPU {npu} to {address}"
    found = re.search(r"([0-9.]+)\s*%\s*packet loss", printed)
    if found and float(found[1]) == 0:
        return ok(subject, "answers", of_host=True)
    lost = f"{found[1]}% of the packets are lost" if found else f"no answer ({_said(printed)})"
    return fault(
        subject,
        lost,
        "mend the network of the NPUs: both in one network or routed, no VLAN or firewall between them; without "
        "it no bytes can be read",
        of_host=True,
    )


def _said(printed: str) -> str:
    """The last line, for people."""
    lines = printed.strip().splitlines()
    return lines[-1].strip()[:120] if lines else f"{TOOL} said nothing"
