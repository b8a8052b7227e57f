"""Texts of tools and files of a host mean what they mean."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import pytest

from omni_async.abc import Finding, Sight
from omni_async.backends.probes import limits, rdma, tools, topology, variables

from . import planted
from .planted import GIB


def faults(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.status == "fault"]


# --- GPUs and cards ---------------------------------------------------------------------------------


def test_a_matrix_of_gpus_and_cards() -> None:
    told = topology.nvidia(planted.NVIDIA)
    assert told.cards["0", "mlx5_0"] == "PIX"
    assert told.cards["0", "mlx5_2"] == "SYS"
    assert told.cards["1", "mlx5_2"] == "PXB"
    assert told.gpus["0", "1"] == "NV18"
    assert len(told.cards) == 6


def test_an_older_matrix() -> None:
    told = topology.nvidia(planted.NVIDIA_OLDER)
    assert told.cards == {
        ("0", "mlx5_0"): "PIX",
        ("0", "mlx5_1"): "SYS",
        ("1", "mlx5_0"): "SYS",
        ("1", "mlx5_1"): "PIX",
    }


@pytest.mark.parametrize("text", ["", "No devices were found", planted.NVIDIA_ALONE])
def test_no_card_beside_the_gpus(text: str) -> None:
    assert topology.nvidia(text).cards == {}
    assert list(topology.advice(topology.nvidia(text), "cuda:0", [])) == []


def test_gpus_joined_by_xgmi() -> None:
    told = topology.rocm(planted.ROCM)
    assert told.gpus == {("0", "1"): "XGMI", ("1", "0"): "XGMI"}
    assert topology.between(told, "XGMI")
    assert not topology.between(topology.rocm(planted.ROCM.replace("XGMI", "PCIE")), "XGMI")
    assert not topology.between(topology.rocm("no GPU"), "XGMI")


@pytest.mark.parametrize(
    ("device", "cards", "status", "remedy"),
    [
        ("cpu", [], "ok", ""),
        ("cuda:0", ["mlx5_0"], "ok", ""),
        ("cuda", ["mlx5_0"], "ok", ""),
        ("cuda:0", ["mlx5_1"], "warning", "device_name: mlx5_0"),  # NODE, and another is PIX
        ("cuda:1", ["mlx5_2"], "warning", "memory_pool_device: cpu"),  # PXB, and none is PIX
        ("cuda:0", [], "warning", "device_name: mlx5_0"),
    ],
)
def test_where_the_pool_is_best(device: str, cards: list[str], status: str, remedy: str) -> None:
    (one,) = topology.advice(topology.nvidia(planted.NVIDIA), device, cards)
    assert one.status == status
    assert remedy in one.remedy
    assert status == "ok" or "memory_pool_device: cpu" in one.remedy


# --- cards ------------------------------------------------------------------------------------------


def test_what_ibstat_tells() -> None:
    first, second = rdma.ibstat(planted.IBSTAT)
    assert first == rdma.Device(
        "mlx5_0", (rdma.Port("1", "ACTIVE", "LinkUp", "400", "InfiniBand"),)
    )
    assert [port.state for port in second.ports] == ["DOWN", "INITIALIZING"]
    assert (first.active, second.active) == (True, False)


def test_interfaces_and_drivers() -> None:
    assert rdma.netdevs(planted.NETDEVS) == {"mlx5_0": "ib0 (Up)", "mlx5_1": "eth2 (Down)"}
    assert rdma.driveable(planted.IBV_DEVICES) == ["mlx5_0", "mlx5_1"]


def test_a_driver_of_another_version() -> None:
    (one,) = rdma.mismatches(f"something else\n{planted.ABI}")
    assert one.status == "fault"
    assert "bnxt_re knows kernel interfaces 1 to 1" in one.seen
    assert "the kernel's for rdma4 is 6" in one.seen
    assert "availDevices.size() > 0" in one.seen
    assert "version of the kernel's driver" in one.remedy
    (none,) = rdma.mismatches(planted.NO_DRIVER)
    assert "no driver for uverbs0" in none.seen


@pytest.fixture
def sight(tmp_path: Path) -> Sight:
    """A sound host."""
    folder = planted.tools(tmp_path / "tools")
    return Sight(planted.host(tmp_path / "root"), {"PATH": str(folder)})


def tool(sight: Sight, name: str, *texts: str, status: int = 0) -> None:
    planted.tool(Path(sight.environ["PATH"]), name, *texts, status=status)


def test_a_sound_host(sight: Sight) -> None:
    cards, found = rdma.look(sight)
    assert [card.name for card in cards] == ["mlx5_0", "mlx5_1"]
    assert {one.status for one in found} == {"ok"}
    assert any("mlx5_0 port 1: ACTIVE, LinkUp, 400 Gb/sec" in one.seen for one in found)
    assert any("ib0 (Up)" in one.seen for one in found)
    assert all(one.of_host for one in found)


def test_no_card(tmp_path: Path) -> None:
    cards, found = rdma.look(Sight(tmp_path, {"PATH": ""}))
    assert cards == []
    (one,) = found
    assert one.absent
    assert "--device=/dev/infiniband" in one.remedy


def test_cards_that_a_container_hides(sight: Sight) -> None:
    (sight.root / "dev/infiniband/uverbs0").unlink()
    (one,) = faults(rdma.look(sight)[1])
    assert "no /dev/infiniband/uverbs*" in one.seen
    assert "--device=/dev/infiniband" in one.remedy


def test_a_link_that_is_down(sight: Sight) -> None:
    planted.card(sight.root, "mlx5_1", "1: DOWN", "3: Disabled")
    cards, found = rdma.look(sight)
    assert faults(found) == []
    (one,) = [one for one in found if one.status == "warning"]
    assert "mlx5_1 port 1: DOWN, Disabled" in one.seen
    assert "ibstat mlx5_1" in one.remedy
    planted.card(sight.root, "mlx5_0", "1: DOWN", "2: Polling")
    (fault,) = faults(rdma.look(sight)[1])
    assert "no port of any RDMA device is active" in fault.seen
    assert len(cards) == 2


def test_cards_that_only_ibstat_shows(sight: Sight, tmp_path: Path) -> None:
    tool(sight, "ibstat", planted.IBSTAT)
    elsewhere = Sight(tmp_path / "bare", sight.environ)
    assert [card.name for card in rdma.look(elsewhere)[0]] == ["mlx5_0", "mlx5_1"]


def test_user_space_that_does_not_fit(sight: Sight) -> None:
    tool(sight, "ibv_devices", "", planted.ABI)
    (one,) = faults(rdma.look(sight)[1])
    assert one.subject == "RDMA driver"
    tool(sight, "ibv_devices", planted.IBV_DEVICES.replace("mlx5_1", "mlx5_9"))
    (one,) = faults(rdma.look(sight)[1])
    assert "no driver for mlx5_1" in one.seen
    tool(sight, "ibv_devices", "", "Failed to get IB devices list\n", status=1)
    (one,) = faults(rdma.look(sight)[1])
    assert "ended with status 1: Failed to get IB devices list" in one.seen


def test_a_card_of_another_name() -> None:
    there = [rdma.Device("mlx5_0", ())]
    assert list(rdma.unknown("mlx5_0, ", there, "device_name")) == []
    (one,) = rdma.unknown("mlx5_0,mlx5_7", there, "RDMA_DEVICE_NAME")
    assert "no RDMA device 'mlx5_7' (there are: mlx5_0)" in one.seen
    assert "RDMA_DEVICE_NAME" in one.remedy
    assert not one.absent


# --- tools ------------------------------------------------------------------------------------------


def test_a_tool_that_hangs(sight: Sight) -> None:
    script = Path(sight.environ["PATH"]) / "nvidia-smi"
    script.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    begin = time.monotonic()
    answer = tools.asked(sight, "nvidia-smi", "topo", "-m", limit=0.3)
    assert time.monotonic() - begin < 5
    assert answer is not None
    assert answer.trouble == "nvidia-smi topo -m does not end within 0.3 s"


def test_a_tool_that_is_no_program(sight: Sight) -> None:
    script = Path(sight.environ["PATH"]) / "nvidia-smi"
    script.write_bytes(b"\x7fELF is not all")
    answer = tools.asked(sight, "nvidia-smi")
    assert answer is not None
    assert "cannot be run" in str(answer.trouble)
    near, found = topology.look(sight)
    assert near is None
    assert [one.status for one in found] == ["warning"]
    assert tools.asked(sight, "no-such-tool") is None


# --- limits -----------------------------------------------------------------------------------------


def test_memory_that_may_be_pinned(sight: Sight, tmp_path: Path) -> None:
    assert limits.pinning(sight, GIB, 8 << 20).status == "ok"  # by its capability
    plain = Sight(planted.host(tmp_path / "plain", capabilities=planted.NONE))
    assert limits.pinning(plain, GIB, GIB).status == "ok"
    one = limits.pinning(plain, GIB, 8 << 20)
    assert one.status == "fault"
    assert "only 8,388,608 bytes may be pinned, the pool has 1,073,741,824" in one.seen
    assert "--cap-add=IPC_LOCK" in one.remedy


@pytest.mark.parametrize(
    ("scope", "capabilities", "status", "remedy"),
    [
        (None, planted.NONE, "ok", ""),
        ("0", planted.NONE, "ok", ""),
        ("1", planted.NONE, "warning", "--cap-add=SYS_PTRACE"),
        ("1", planted.ALL, "ok", ""),
        ("2", planted.NONE, "warning", "--cap-add=SYS_PTRACE"),
        ("3", planted.ALL, "warning", "start the host again"),
    ],
)
def test_copies_between_processes(
    tmp_path: Path, scope: str | None, capabilities: str, status: str, remedy: str
) -> None:
    sight = Sight(planted.host(tmp_path, capabilities=capabilities))
    if scope is not None:
        planted.write(tmp_path / "proc/sys/kernel/yama/ptrace_scope", f"{scope}\n")
    one = limits.reaching(sight, lambda: errno.EFAULT)
    assert one.status == status
    assert remedy in one.remedy


def test_copies_that_a_sandbox_refuses(sight: Sight) -> None:
    one = limits.reaching(sight, lambda: errno.EPERM)
    assert one.status == "warning"
    assert os.strerror(errno.EPERM) in one.seen
    assert "seccomp" in one.remedy


def test_small_limits(sight: Sight, tmp_path: Path) -> None:
    assert limits.descriptors((1024, 4096)).remedy.startswith("ulimit -n 4096")
    assert limits.descriptors((1024, 1024)).remedy.startswith("raise the hard limit")
    assert limits.descriptors((65536, 65536)).status == "ok"
    assert "--shm-size" in limits.shared_memory(sight, 64 << 20).remedy
    assert limits.shared_memory(sight, GIB).status == "ok"
    assert limits.shared_memory(sight).seen == "there is none"
    assert limits.usual_pool(sight) == 4 * GIB
    assert limits.usual_pool(Sight(planted.host(tmp_path / "small", memory=2 * GIB))) == GIB // 2


# --- variables --------------------------------------------------------------------------------------


def test_variables_that_mean_nothing() -> None:
    environ = {"MORI_IO_QP_MAX_CQE": "many", "MORI_IO_QP_MAX_SEND_WR": "8192", "MC_TE_METRIC": "x"}
    (cqe,) = variables.number(environ, "MORI_IO_QP_MAX_CQE")
    assert (cqe.status, "unset MORI_IO_QP_MAX_CQE" in cqe.remedy) == ("fault", True)
    (wr,) = variables.number(environ, "MORI_IO_QP_MAX_SEND_WR")
    assert wr.status == "ok"
    assert list(variables.number({}, "MORI_IO_QP_MAX_CQE")) == []
    (metric,) = variables.choice(environ, "MC_TE_METRIC", ("0", "1"), "figures")
    assert metric.status == "fault"
    assert "export MC_TE_METRIC=1" in metric.remedy
    assert list(variables.choice({}, "MC_TE_METRIC", ("0", "1"), "figures")) == []
