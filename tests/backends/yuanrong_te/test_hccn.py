"""What ``hccn_tool`` prints, understood: texts as the seed documents have them, and what else may come."""

from __future__ import annotations

import pytest

from omni_async.backends.yuanrong_te import hccn


@pytest.mark.parametrize(
    ("printed", "address", "status", "said"),
    [
        ("ipaddr:10.86.1.80\nnetmask:255.255.255.0", "10.86.1.80", "ok", "10.86.1.80"),
        ("ipaddr: 10.86.1.80", "10.86.1.80", "ok", "10.86.1.80"),
        (
            "Get ipconf failed, because no ip was preset there!",
            "",
            "fault",
            "no address is set",
        ),
        ("ipaddr:fe80::1\n", "fe80::1", "warning", "is IPv6"),
        ("ipaddr:10.86.1.800", "", "fault", "10.86.1.800 is no address"),
        ("Cmd os error: device 9 is not there", "", "fault", "device 9 is not there"),
        ("", "", "fault", "hccn_tool said nothing"),
    ],
)
def test_addresses(printed: str, address: str, status: str, said: str) -> None:
    found = hccn.ip(3, printed)
    assert (found.text, found.finding.status, found.finding.subject) == (
        address,
        status,
        "NPU 3 address",
    )
    assert said in found.finding.seen
    assert ("hccn_tool -i 3 -ip -s address" in found.finding.remedy) is (status != "ok")
    assert ("IPv6" in found.finding.remedy) is (status == "warning")


@pytest.mark.parametrize(
    ("printed", "status", "said"),
    [
        ("link status: UP", "ok", "up"),
        ("link status: DOWN", "fault", "down"),
        ("link status: down\n", "fault", "down"),
        ("Link Status : UP", "ok", "up"),
        ("nonsense", "fault", "nonsense"),
    ],
)
def test_links(printed: str, status: str, said: str) -> None:
    found = hccn.link(1, printed)
    assert (found.status, found.of_host) == (status, True)
    assert said in found.seen


@pytest.mark.parametrize(
    ("printed", "status", "said"),
    [
        ("net health status: Success", "ok", "healthy"),
        ("net health status: Init", "warning", "Init"),
        ("net health status: Receive timeout", "warning", "Receive timeout"),
        ("", "warning", "not known"),
    ],
)
def test_the_health_of_the_network(printed: str, status: str, said: str) -> None:
    found = hccn.net_health(1, printed)
    assert found.status == status
    assert said in found.seen


PINGED = """device 0 PING 10.86.1.78
recv seq=0,time=0.113000ms
recv seq=1,time=0.090000ms
2 packets transmitted, 2 received, {}% packet loss
"""


@pytest.mark.parametrize(
    ("printed", "status", "said"),
    [
        (PINGED.format("0.00"), "ok", "answers"),
        (PINGED.format("0"), "ok", "answers"),
        (PINGED.format("50.00"), "fault", "50.00% of the packets"),
        (PINGED.format("100.00"), "fault", "100.00% of the packets"),
        ("roce ping operation failed", "fault", "no answer (roce ping operation failed)"),
    ],
)
def test_pings(printed: str, status: str, said: str) -> None:
    found = hccn.ping(0, "10.86.1.78", printed)
    assert (found.status, found.subject) == (status, "NPU 0 to 10.86.1.78")
    assert said in found.seen
    assert bool(found.remedy) is (status != "ok")
