"""What a deploy file's stages need of their host, and of the way to others."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_async import Deploy, load_deploy
from omni_async.abc import Finding, Sight
from omni_async.abc.findings import fault, ok
from omni_async.cli.doctor import room, stages
from omni_async.cli.doctor.network import Network, Unanswered, given_out
from omni_async.cli.doctor.report import settled
from omni_async.cli.doctor.words import HOST, Told
from omni_async.cli.free_ports import FreePorts

from . import planted
from .planted import GIB


@pytest.fixture
def network() -> Iterator[Network]:
    asked = Network()
    yield asked
    asked.close()


def pipeline(extra: dict[str, Any], **second: Any) -> Deploy:
    return load_deploy(
        {
            "connectors": {"wire": {"name": "NixlConnector", "extra": extra}},
            "stages": [
                {"stage_id": 0, "host": "node-a", "output_connectors": {"to_stage_1": "wire"}},
                {"stage_id": 1, **second},
            ],
        }
    )


# --- ports ------------------------------------------------------------------------------------------


async def test_a_port_that_is_free_and_one_that_is_not(network: Network) -> None:
    assert await network.local("127.0.0.1")
    assert await network.local("localhost")
    assert not await network.local("203.0.113.7")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = await network.listening("127.0.0.1", port)
        assert taken is not None
        assert f"127.0.0.1:{port} is taken by process {os.getpid()}" in taken
        assert await network.reach("127.0.0.1", port) is None
    assert await network.listening("127.0.0.1", port) is None
    error = await network.reach("127.0.0.1", port)
    assert error is not None
    assert error.errno == errno.ECONNREFUSED
    with FreePorts() as ports:  # kept for whoever is to listen there, and not in the way
        assert await network.listening("127.0.0.1", ports.of("kept")) is None
    with pytest.raises(Unanswered, match=r"'no-such-host\.invalid'"):
        await network.local("no-such-host.invalid")


def test_ports_that_the_kernel_gives_out(tmp_path: Path) -> None:
    sight = Sight(tmp_path)
    assert not given_out(sight, 50051)
    planted.write(tmp_path / "proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    planted.write(tmp_path / "proc/sys/net/ipv4/ip_local_reserved_ports", "\n")
    assert given_out(sight, 50051)
    assert not given_out(sight, 20001)
    planted.write(tmp_path / "proc/sys/net/ipv4/ip_local_reserved_ports", "8080,50051-50060\n")
    assert not given_out(sight, 50051)
    assert given_out(sight, 50061)


async def test_ports_of_all_ranks(network: Network, tmp_path: Path) -> None:
    planted.write(tmp_path / "proc/sys/net/ipv4/ip_local_port_range", "1\t65535\n")
    extra = {"zmq_port": 20001, "host": "127.0.0.1"}
    deploy = load_deploy(
        {
            "connectors": {"wire": {"name": "NixlConnector", "extra": extra}},
            "stages": [
                {
                    "stage_id": 0,
                    "num_replicas": 2,
                    "tensor_parallel_size": 2,
                    "output_connectors": {"to_stage_1": "wire"},
                },
                {"stage_id": 1, "tensor_parallel_size": 2},
            ],
        }
    )
    here = list(deploy.stages.values())
    told = [one.finding for one in await stages.listening(deploy, here, network, Sight(tmp_path))]
    assert [one.status for one in told] == ["ok", "warning"]
    assert told[0].seen == "free at 127.0.0.1: 20001-20004"
    assert "ip_local_reserved_ports=20001-20004" in told[1].remedy


# --- other hosts ------------------------------------------------------------------------------------


class Elsewhere(Network):
    """A network in which ``node-a`` is another host, in some state."""

    def __init__(self, state: OSError | Unanswered | None) -> None:
        super().__init__()
        self.state = state

    async def local(self, host: str) -> bool:
        return host != "node-a"

    async def reach(self, host: str, port: int) -> OSError | None:
        assert (host, port) == ("node-a", 20001)
        if isinstance(self.state, Unanswered):
            raise self.state
        return self.state


@pytest.mark.parametrize(
    ("state", "status", "seen", "remedy"),
    [
        (None, "ok", "node-a:20001 answers", ""),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
            "warning",
            "nobody listens there yet",
            "start stage 0 there",
        ),
        (
            TimeoutError("timed out"),
            "fault",
            "node-a:20001 cannot be reached (timed out)",
            "firewalls",
        ),
        (
            OSError(errno.EHOSTUNREACH, "No route to host"),
            "fault",
            "No route to host",
            "'host' of stage 0",
        ),
        (Unanswered("nobody knows 'node-a'"), "fault", "nobody knows", "OMNI_ASYNC_STAGE_0_HOST"),
    ],
)
async def test_the_host_of_a_sender(
    state: OSError | Unanswered | None, status: str, seen: str, remedy: str
) -> None:
    deploy = pipeline({"zmq_port": 20001})
    network = Elsewhere(state)
    try:
        here, told = await stages.places(deploy, [], network)
        assert [plan.id for plan in here] == ["1"]
        assert "runs on node-a, not here" in told[0].finding.seen
        (one,) = await stages.reaching(deploy, here, network)
    finally:
        network.close()
    assert one.about == "edge 0->1"
    assert one.finding.status == status
    assert seen in one.finding.seen
    assert remedy in one.finding.remedy


# --- memory -----------------------------------------------------------------------------------------


def memory(extra: dict[str, Any], there: int, **stage: Any) -> list[Finding]:
    deploy = load_deploy(
        {
            "connectors": {"wire": {"name": "NixlConnector", "extra": extra}},
            "stages": [
                {"stage_id": 0, **stage, "output_connectors": {"to_stage_1": "wire"}},
                {"stage_id": 1},
            ],
        }
    )
    return list(room.findings(list(deploy.stages.values()), there))


def test_pools_that_fit_and_those_that_do_not() -> None:
    (fits,) = memory({"memory_pool_size": GIB}, 3 * GIB)
    assert fits.status == "ok"
    assert "2,147,483,648 bytes at most, of 3,221,225,472" in fits.seen
    (large,) = memory({"memory_pool_size": GIB}, 3 * GIB, num_replicas=4)
    assert (large.status, "(4 x 1,073,741,824)" in large.seen) == ("fault", True)
    assert "memory_pool_size" in large.remedy
    (generous,) = memory({}, 8 * GIB, num_replicas=8)
    assert (generous.status, "defaults" in generous.remedy) == ("warning", True)
    each = memory({"memory_pool_size": 9 * GIB}, 8 * GIB)
    assert {one.status for one in each} == {"fault"}


def test_a_containers_memory(tmp_path: Path) -> None:
    sight = Sight(planted.host(tmp_path))
    assert room.allowance(sight) == 64 * GIB
    planted.limited(tmp_path, 2 * GIB)
    assert room.allowance(sight) == 2 * GIB


def test_a_store_is_lent_memory() -> None:
    deploy = load_deploy(
        {
            "connectors": {
                "kept": {
                    "name": "MooncakeStoreConnector",
                    "extra": {"segment": 5 * GIB, "localbuf": GIB, "memory_pool_size": GIB},
                }
            },
            "stages": [
                {"stage_id": 0, "output_connectors": {"to_stage_1": "kept"}},
                {"stage_id": 1},
            ],
        }
    )
    (one,) = room.findings(list(deploy.stages.values()), 10 * GIB)
    assert one.status == "fault"
    assert f"come to {14 * GIB:,} bytes" in one.seen


# --- the report -------------------------------------------------------------------------------------


def test_each_finding_is_told_once_and_as_bad_as_it_is() -> None:
    here = fault("RDMA", "none", "buy one", absent=True, of_host=True)
    own = ok("package", "1.0")
    told = settled(
        [
            (Told("a", own), True),
            (Told("a", here), False),
            (Told("b", here), True),
            (Told("b", own), True),
            (Told("c", fault("package", "is not here", "install it", absent=True)), False),
            (Told("c", fault("options", "contradict each other", "choose")), False),
        ],
        ["b"],
    )
    assert [(one.about, one.finding.subject, one.finding.status) for one in told] == [
        (HOST, "RDMA", "fault"),
        ("b", "package", "ok"),
        ("a", "package", "ok"),
        ("c", "package", "warning"),
        ("c", "options", "fault"),
    ]
