"""One thing planted on a sound host: that is found, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_async.abc import Finding
from omni_async.backends.mooncake import checks
from omni_async.backends.mooncake.checks import Machine
from omni_async.backends.mooncake.config import MooncakeTransferEngineOptions
from omni_async.backends.mooncake.examination import findings

from . import planted

Plant = Callable[[Machine], Machine]


def options(**values: Any) -> MooncakeTransferEngineOptions:
    extra = {"protocol": "rdma", "device_name": "mlx5_0", "memory_pool_size": planted.GIB}
    return MooncakeTransferEngineOptions.model_validate({**extra, **values})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = planted.tools(tmp_path / "tools")
    return Machine(
        root=planted.host(tmp_path / "root"),
        environ={"PATH": str(folder)},
        memlock=lambda: 8 << 20,
        load=lambda host: None,
        version=lambda name: "0.3.13" if name == checks.PACKAGES[0] else None,
        device_trouble=lambda device: None,
        rdma_devices=lambda: ["mlx5_0", "mlx5_1"],
    )


def wrong(machine: Machine, **values: Any) -> list[Finding]:
    return [one for one in findings(options(**values), machine) if one.status != "ok"]


def test_a_sound_host(machine: Machine) -> None:
    assert wrong(machine) == []
    found = list(findings(options(), machine))
    assert {"package", "RDMA link", "RDMA driver", "device_name", "memlock"} <= {
        one.subject for one in found
    }
    assert any("GPU 0 and mlx5_0: PIX" in one.seen for one in found)


def variable(name: str, value: str) -> Plant:
    return lambda machine: dataclasses.replace(machine, environ={**machine.environ, name: value})


def no_module(host: str) -> object:
    raise ImportError("No module named 'mooncake'")


def no_library(host: str) -> object:
    raise ImportError("libibverbs.so.1: cannot open shared object file")


def unplugged(machine: Machine) -> Machine:
    planted.card(machine.root, "mlx5_0", "1: DOWN", "2: Polling")
    return machine


def hidden(machine: Machine) -> Machine:
    (machine.root / "dev/infiniband/uverbs0").unlink()
    return machine


def unlocked(machine: Machine) -> Machine:
    planted.write(machine.root / "proc/self/status", f"CapEff:\t{planted.NONE}\n")
    return machine


def unfit(machine: Machine) -> Machine:
    planted.tool(Path(machine.environ["PATH"]), "ibv_devices", "", planted.ABI)
    return machine


def unsaid(machine: Machine) -> Machine:
    (Path(machine.environ["PATH"]) / "ibv_devices").unlink()
    return machine


CASES: dict[str, tuple[Plant, str, str, str, dict[str, Any]]] = {
    "package": (
        lambda machine: dataclasses.replace(machine, load=no_module, version=lambda name: None),
        "package",
        "cannot be imported",
        "pip install 'omni-async[mooncake]'",
        {},
    ),
    "library": (
        lambda machine: dataclasses.replace(machine, load=no_library),
        "package",
        "libibverbs.so.1 is missing",
        "apt-get install libibverbs1",
        {},
    ),
    "old": (
        lambda machine: dataclasses.replace(machine, version={checks.PACKAGES[0]: "0.3.9"}.get),
        "package",
        "0.3.9 is too old",
        "pip install",
        {},
    ),
    "forced": (variable("MC_FORCE_TCP", "1"), "MC_FORCE_TCP", "use TCP", "unset MC_FORCE_TCP", {}),
    "ordering": (
        variable("MC_IB_PCI_RELAXED_ORDERING", "yes"),
        "MC_IB_PCI_RELAXED_ORDERING",
        "it knows 0, 2, 1",
        "export MC_IB_PCI_RELAXED_ORDERING=1",
        {},
    ),
    "metric": (variable("MC_TE_METRIC", "often"), "MC_TE_METRIC", "'often'", "unset", {}),
    "renamed": (
        variable("RDMA_DEVICE_NAME", "mlx5_7"),
        "RDMA_DEVICE_NAME",
        "no RDMA device 'mlx5_7' (there are: mlx5_0, mlx5_1)",
        "correct RDMA_DEVICE_NAME",
        {"device_name": ""},
    ),
    "unplugged": (unplugged, "RDMA", "no port of the RDMA devices mlx5_0", "ibstat", {}),
    "hidden": (hidden, "RDMA device files", "mlx5_0", "--device=/dev/infiniband", {}),
    "unlocked": (unlocked, "memlock", "only 8,388,608 bytes", "IPC_LOCK", {}),
    "unfit": (unfit, "RDMA driver", "kernel interfaces 1 to 1", "version of the kernel's", {}),
    "unsaid": (unsaid, "RDMA driver", "not installed", "apt-get install ibverbs-utils", {}),
    "crowded": (
        lambda machine: machine,
        "memory_pool_size",
        "only 68,719,476,736 bytes are free",
        "lower memory_pool_size",
        {"memory_pool_size": 100 * planted.GIB},
    ),
    "no device": (
        lambda machine: dataclasses.replace(machine, device_trouble=lambda device: "no cuda here"),
        "memory_pool_device",
        "no pool on cuda:0: no cuda here",
        "memory_pool_device: cpu",
        {"memory_pool_device": "cuda:0"},
    ),
    "far": (
        lambda machine: machine,
        "GPU and RDMA card",
        "mlx5_1 by NODE",
        "device_name: mlx5_0",
        {"memory_pool_device": "cuda:0", "device_name": "mlx5_1"},
    ),
    "strict": (
        lambda machine: machine,
        "MC_IB_PCI_RELAXED_ORDERING",
        "is off",
        "export MC_IB_PCI_RELAXED_ORDERING=1",
        {"memory_pool_device": "cuda:0"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_thing_is_wrong(machine: Machine, case: str) -> None:
    plant, subject, seen, remedy, values = CASES[case]
    found = wrong(plant(machine), **values)
    assert all(one.remedy for one in found)
    (one,) = [one for one in found if seen in one.seen]
    assert one.subject == subject
    assert remedy in one.remedy
    expected = "warning" if case in ("far", "strict", "unsaid") else "fault"
    assert one.status == expected
    # A pool on a GPU is told of ordering, and a link of its own that is down of itself, too.
    others = {other.subject for other in found} - {subject}
    assert others <= {"RDMA link", "MC_IB_PCI_RELAXED_ORDERING", "memlock"}
