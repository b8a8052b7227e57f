"""`omni-async doctor`: on this machine, and on one where much is wrong."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_async import registry
from omni_async.backends.machine import version_of
from omni_async.cli.doctor.asking import Asking
from omni_async.cli.doctor.words import Job, Question
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.main import main

from . import planted
from .planted import GIB

Findings = list[dict[str, Any]]


class Report:
    """What one run has told."""

    def __init__(self, status: int, told: dict[str, Any]) -> None:
        self.status = status
        self.ok: bool = told["ok"]
        self.findings: Findings = told["findings"]
        assert told["faults"] == len(self.of("fault"))
        assert told["warnings"] == len(self.of("warning"))
        assert self.ok == (not self.of("fault")) == (status == 0)
        for one in self.findings:
            assert (one["remedy"] is None) == (one["status"] == "ok"), one

    def of(self, status: str) -> Findings:
        return [one for one in self.findings if one["status"] == status]

    def one(self, about: str, subject: str, seen: str = "") -> dict[str, Any]:
        found = [
            one
            for one in self.findings
            if (one["about"], one["subject"]) == (about, subject) and seen in one["seen"]
        ]
        assert len(found) == 1, (about, subject, seen, self.findings)
        return found[0]


class Doctor:
    """Runs the command."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Report:
        status = main(["doctor", "--json", *arguments])
        out, err = self._capsys.readouterr()
        assert err == ""
        return Report(status, json.loads(out))


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


def written(path: Path, deploy: dict[str, Any]) -> str:
    path.write_text(json.dumps(deploy))
    return str(path)


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


# --- this machine -----------------------------------------------------------------------------------


def test_every_backend_on_this_machine(doctor: Doctor) -> None:
    """Nothing was asked for, so what is missing is worth a warning; what is told is so."""
    report = doctor()
    assert report.ok
    assert {one["about"] for one in report.findings} == {"host", *registry.aliases()}
    assert report.one("shm", "memory")["status"] == "ok"
    cards = Path("/sys/class/infiniband").is_dir() and os.listdir("/sys/class/infiniband")
    assert bool(cards) == (not [one for one in report.findings if one["subject"] == "RDMA"])
    for alias, package in (
        ("mooncake", "mooncake-transfer-engine-non-cuda"),
        ("mooncake-store", "mooncake-transfer-engine-non-cuda"),
        ("nixl", "nixl-cu12"),
        ("yuanrong", "openyuanrong-datasystem"),
    ):
        version = version_of(package)
        found = report.one(alias, "package")
        assert (found["status"] == "ok") == (version is not None)
        assert version is None or f"{package} {version}" in found["seen"]
    for alias, subject, port in (
        ("mooncake-store", "master", 50051),
        ("yuanrong", "worker", 35001),
    ):
        if not answers(port):
            assert report.one(alias, subject, "nobody answers")["status"] == "warning"


def test_people_get_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "shm"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "host"
    assert (
        "  ok      memory: memfd segments, passed from process to process; /dev/shm is not used"
        in lines
    )
    assert lines[-1].endswith(" ok")
    assert "fault" not in lines[-1]


def test_npus_without_addresses(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "yuanrong-te" in registry.PLANNED:
        pytest.skip("yuanrong-te is not part of this release")
    for npu in (0, 1):
        planted.write(tmp_path / f"root/dev/davinci{npu}", "")
    tools = planted.tools(tmp_path / "tools")
    planted.tool(tools, "hccn_tool", "Get ipconf failed, because no ip was preset there!\n")
    monkeypatch.setenv("PATH", planted.path_of(tools))
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    report = doctor("--backend", "yuanrong-te", "--root", str(tmp_path / "root"))
    assert report.status == 1
    for npu in (0, 1):
        found = report.one("host", f"NPU {npu} address", "no address is set")
        assert found["status"] == "fault"
        assert f"hccn_tool -i {npu} -ip -s address" in found["remedy"]


def test_what_is_asked_for_has_to_be_there(doctor: Doctor) -> None:
    """The same that was a warning where nobody had asked."""
    if answers(35001):
        pytest.skip("there is a worker at the usual port")
    report = doctor("--backend", "YuanrongConnector")
    assert report.status == 1
    found = report.one("yuanrong", "worker", "nobody answers at 127.0.0.1:35001")
    assert "dscli start -w --worker_address 127.0.0.1:35001" in found["remedy"]
    assert {one["about"] for one in report.findings} == {"host", "yuanrong"}


def test_what_nobody_can_ask(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--backend", "mooncak"], "did you mean 'mooncake'"),
        (["--stage", "0"], "--deploy is missing"),
        (["--root", "/no/such/root"], "is no folder"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["doctor", *arguments])
        assert caught.value.code == 2
        assert words in capsys.readouterr().err


def test_a_file_that_is_wrong(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "stages:\n- {stage_id: 0, output_connectors: {to_stage_1: wire}}\n- stage_id: 1\n"
    )
    report = doctor("--deploy", str(file))
    found = report.one("deploy file", "mistake")
    assert "no connector is called 'wire'" in found["seen"]
    assert "(line 2)" in found["seen"]
    assert "omni-async config" in found["remedy"]


# --- ten faults -------------------------------------------------------------------------------------


@pytest.fixture
def little_memlock() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    low = 1 << 20 if before[1] == resource.RLIM_INFINITY else min(1 << 20, before[1])
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (low, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def test_more_than_ten_things_are_wrong(
    doctor: Doctor,
    ports: FreePorts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    little_memlock: None,
) -> None:
    """One host, one file, one run: each is found where it is, with what to do."""
    for package in ("mooncake", "nixl_cu12", "yr"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    root = planted.host(tmp_path / "root", capabilities=planted.NONE)
    planted.limited(root, 2 * GIB)
    planted.card(root, "mlx5_1", "1: DOWN", "3: Disabled")
    (root / "dev/infiniband/uverbs0").unlink()
    tools = planted.tools(tmp_path / "tools")
    planted.tool(tools, "ibv_devices", "", planted.ABI)
    monkeypatch.setenv("PATH", planted.path_of(tools))
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    monkeypatch.setenv("MC_IB_PCI_RELAXED_ORDERING", "yes")
    monkeypatch.setenv("MORI_IO_QP_MAX_CQE", "many")
    monkeypatch.setenv("MORI_RDMA_DEVICES", "mlx5_9")
    free, nobody = ports.of("free"), ports.of("nobody")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = taken.getsockname()[1]
        deploy = {
            "connectors": {
                "cards": {
                    "name": "MooncakeTransferEngineConnector",
                    "extra": {"device_name": "mlx5_7", "zmq_port": free},
                },
                "near": {
                    "name": "NixlConnector",
                    "extra": {"host": "127.0.0.1", "zmq_port": busy - 1},
                },
                "far": {"name": "NixlConnector", "extra": {"host": "203.0.113.7"}},
                "kept": {
                    "name": "MooncakeStoreConnector",
                    "extra": {"master": f"127.0.0.1:{busy}", "metadata_server": "P2PHANDSHAKE"},
                },
                "held": {
                    "name": "YuanrongConnector",
                    "extra": {"port": nobody, "memory_pool_size": 3 * GIB},
                },
                "amd": {"name": "MoriTransferEngineConnector", "extra": {"zmq_port": free - 1}},
                "box": {
                    "name": "SharedMemoryConnector",
                    "extra": {"socket_dir": str(tmp_path / "nowhere")},
                },
            },
            "stages": [
                {"stage_id": 0, "output_connectors": {"to_stage_1": "cards"}},
                {"stage_id": 1, "output_connectors": {"to_stage_2": "near", "to_stage_3": "box"}},
                {"stage_id": 2, "output_connectors": {"to_stage_3": "far", "to_stage_1": "kept"}},
                {"stage_id": 3, "output_connectors": {"to_stage_1": "held", "to_stage_2": "amd"}},
                {"stage_id": 4, "host": "no-such-host.invalid"},
            ],
        }
        report = doctor("--deploy", written(tmp_path / "deploy.yaml", deploy), "--root", str(root))
    assert report.status == 1
    cards, near = "cards (MooncakeTransferEngineConnector)", "stage 1"
    amd = "amd (MoriTransferEngineConnector)"
    for about, subject, seen, remedy in (
        ("host", "RDMA driver", "kernel interfaces 1 to 1", "version of the kernel's driver"),
        ("host", "RDMA device files", "no /dev/infiniband", "--device=/dev/infiniband"),
        (cards, "device_name", "no RDMA device 'mlx5_7'", "correct device_name"),
        (cards, "MC_FORCE_TCP", "use TCP", "unset MC_FORCE_TCP"),
        (cards, "MC_IB_PCI_RELAXED_ORDERING", "'yes'", "export MC_IB_PCI_RELAXED_ORDERING=1"),
        (cards, "memlock", "may be pinned", "--cap-add=IPC_LOCK"),
        (amd, "MORI_IO_QP_MAX_CQE", "'many'", "unset MORI_IO_QP_MAX_CQE"),
        (amd, "MORI_RDMA_DEVICES", "no RDMA device 'mlx5_9'", "correct MORI_RDMA_DEVICES"),
        ("host", "memory_pool_size", "stage 3, sender over held", "lower memory_pool_size"),
        (near, "port", f"127.0.0.1:{busy} is taken by process {os.getpid()}", "another zmq_port"),
        ("stage 2", "host", "203.0.113.7 is no address of this host", "host: auto"),
        ("stage 4", "host", "no-such-host.invalid", "/etc/hosts"),
        ("kept (MooncakeStoreConnector)", "master", f"127.0.0.1:{busy}", "mooncake_master"),
        ("held (YuanrongConnector)", "worker", f"127.0.0.1:{nobody}", "dscli start"),
        ("box (SharedMemoryConnector)", "socket_dir", "nowhere", "mkdir -p"),
    ):
        found = report.one(about, subject, seen)
        assert found["status"] == "fault", found
        assert remedy in found["remedy"]
    down = report.one("host", "RDMA link", "mlx5_1 port 1: DOWN")
    assert down["status"] == "warning"


def test_a_file_whose_servers_and_ports_are_there(
    doctor: Doctor, ports: FreePorts, tmp_path: Path
) -> None:
    if importlib.util.find_spec("mooncake") is None:
        pytest.skip("Mooncake is not installed")
    from omni_async.cli.servers.mooncake import MooncakeMaster

    master = MooncakeMaster()
    with master:
        deploy = {
            "connectors": {
                "kept": {"name": "MooncakeStoreConnector", "extra": master.extra("sender")},
                "wire": {
                    "name": "MooncakeTransferEngineConnector",
                    "extra": {"host": "127.0.0.1", "protocol": "tcp", "zmq_port": ports.of("wire")},
                },
            },
            "stages": [
                {"stage_id": 0, "output_connectors": {"to_stage_1": "kept", "to_stage_2": "wire"}},
                {"stage_id": 1},
                {"stage_id": 2},
            ],
        }
        report = doctor("--deploy", written(tmp_path / "deploy.yaml", deploy))
        answering = f"{master.address} answers"
    assert report.ok
    assert report.one("kept (MooncakeStoreConnector)", "master")["seen"] == answering
    assert (
        "127.0.0.1 with protocol tcp"
        in report.one("wire (MooncakeTransferEngineConnector)", "engine")["seen"]
    )
    assert report.one("stage 0", "port", "free at 127.0.0.1")["status"] == "ok"
    assert "on this host" in report.one("edge 0->2", "sender")["seen"]


# --- other hosts ------------------------------------------------------------------------------------


def test_stages_of_other_hosts(
    doctor: Doctor, ports: FreePorts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ports are not looked at; whether they are reached is."""
    deploy = {
        "connectors": {
            "wire": {
                "name": "NixlConnector",
                "extra": {"zmq_port": ports.of("wire"), "host": "127.0.0.1"},
            }
        },
        "stages": [
            {"stage_id": 0, "host": "127.0.0.1", "output_connectors": {"to_stage_1": "wire"}},
            {"stage_id": 1, "host": "192.0.2.200"},
        ],
    }
    file = written(tmp_path / "deploy.yaml", deploy)
    monkeypatch.setattr("omni_async.cli.doctor.questions.of_stages", lambda plans: [])
    report = doctor("--deploy", file)
    assert report.one("stage 1", "host", "not here")["status"] == "ok"
    assert not [one for one in report.findings if one["about"] == "edge 0->1"]
    report = doctor("--deploy", file, "--stage", "1")
    assert "192.0.2.200 is no address" in report.one("stage 1", "host")["seen"]
    monkeypatch.setenv("OMNI_ASYNC_STAGE_0_HOST", "[::1")
    deploy["stages"][1]["host"] = "localhost"  # type: ignore[index]
    report = doctor("--deploy", written(tmp_path / "deploy.yaml", deploy))
    assert report.one("edge 0->1", "OMNI_ASYNC_STAGE_0_HOST")["status"] == "fault"


# --- vendors that do not behave ---------------------------------------------------------------------

BAD = """
import os, time
from omni_async.backends.memory import MemoryBackend

class Hangs(MemoryBackend):
    name, alias = "HangingConnector", "hangs"
    async def examine(self, options, role, sight):
        time.sleep(60)

class Dies(MemoryBackend):
    name, alias = "DyingConnector", "dies"
    async def examine(self, options, role, sight):
        print("words that are no finding", flush=True)
        os.write(2, b"assertion failed: no device\\n")
        os.abort()

class Raises(MemoryBackend):
    name, alias = "RaisingConnector", "raises"
    async def examine(self, options, role, sight):
        raise KeyError("nonsense")

class Trails(MemoryBackend):
    name, alias = "TrailingConnector", "trails"
    async def examine(self, options, role, sight):
        import subprocess
        print("noise")
        subprocess.Popen(["sleep", "60"])
        return await super().examine(options, role, sight)
"""


def test_vendors_that_hang_die_and_raise(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"hangs": "Hangs", "dies": "Dies", "raises": "Raises", "trails": "Trails"}
    (tmp_path / "bad_backends.py").write_text(BAD)
    about = tmp_path / "bad_backends-1.dist-info"
    planted.write(about / "METADATA", "Metadata-Version: 2.1\nName: bad-backends\nVersion: 1\n")
    points = "".join(f"{alias} = bad_backends:{cls}\n" for alias, cls in names.items())
    planted.write(about / "entry_points.txt", f"[omni_async.backends]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._announced.cache_clear()
    loaded = dict(registry._loaded)
    try:
        begin = time.monotonic()
        job = Job("hangs", "/", (Question("sender", {}),), 2.0)
        (hung,) = asyncio.run(Asking().findings(job))
        assert time.monotonic() - begin < 20
        report = doctor("--backend", "dies", "--backend", "raises", "--backend", "trails")
    finally:
        registry._announced.cache_clear()
        registry._loaded.clear()
        registry._loaded.update(loaded)
    assert (hung.status, hung.seen) == ("fault", "was not through after 2 s, and was ended")
    died = report.one("dies", "examination")["seen"]
    assert "SIGABRT" in died
    assert "assertion failed: no device" in died
    assert "KeyError: 'nonsense'" in report.one("raises", "examination")["seen"]
    assert {one["status"] for one in report.findings if one["about"] == "trails"} == {"ok"}
