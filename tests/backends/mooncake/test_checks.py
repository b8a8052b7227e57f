"""What is missing is told at opening, all of it, with a way to get it."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from omni_async.backends.mooncake import checks
from omni_async.backends.mooncake.checks import Machine, check, named_devices
from omni_async.backends.mooncake.config import MooncakeTransferEngineOptions
from omni_async.errors import BackendUnavailable, ConfigError

GIB = 1 << 30


def options(**values: Any) -> MooncakeTransferEngineOptions:
    return MooncakeTransferEngineOptions.model_validate(
        {"host": "10.0.0.1", "memory_pool_size": GIB, **values}
    )


def make_root(root: Path, *devices: str, active: bool = True, locks: bool = True) -> None:
    """A machine with RDMA cards."""
    (root / "dev/infiniband").mkdir(parents=True)
    (root / "dev/infiniband/uverbs0").touch()
    for device in devices:
        port = root / "sys/class/infiniband" / device / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n" if active else "1: DOWN\n")
    process = root / "proc/self"
    process.mkdir(parents=True)
    (process / "status").write_text(f"CapEff:\t{'0000003fffffffff' if locks else '0' * 16}\n")
    (root / "proc/meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One where nothing is missing."""
    make_root(tmp_path, "mlx5_0", "mlx5_1")
    return Machine(
        root=tmp_path,
        environ={},
        memlock=lambda: 8 << 20,
        load=lambda host: None,
        version=lambda name: "0.3.13.post1" if name == checks.PACKAGES[0] else None,
        device_trouble=lambda device: None,
        rdma_devices=lambda: ["mlx5_0", "mlx5_1"],
    )


def but(machine: Machine, **changes: Any) -> Machine:
    return dataclasses.replace(machine, **changes)


def unavailable(machine: Machine, **values: Any) -> BackendUnavailable:
    with pytest.raises(BackendUnavailable) as caught:
        check(options(**values), machine)
    assert caught.value.backend == "MooncakeTransferEngineConnector"
    return caught.value


def contradiction(machine: Machine, **values: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check(options(**values), machine)
    return caught.value


@pytest.mark.parametrize("protocol", ["tcp", "rdma", "efa"])
def test_nothing_is_missing(machine: Machine, protocol: str) -> None:
    check(options(protocol=protocol), machine)


def test_this_machine(native: object) -> None:
    check(options(protocol="tcp"))


# --- the package ----------------------------------------------------------------------------------


def raising(error: ImportError) -> Any:
    def load(host: str) -> None:
        raise error

    return load


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        ("No module named 'mooncake'", "mooncake-transfer-engine-non-cuda", "pip install"),
        (
            "libibverbs.so.1: cannot open shared object file: No such file or directory",
            "library libibverbs.so.1 is missing",
            "apt-get install libibverbs1",
        ),
        (
            "libcurl.so.4: cannot open shared object file: No such file or directory",
            "libcurl.so.4",
            "apt-get install libcurl4",
        ),
        (
            "libodd.so.2: cannot open shared object file: No such file or directory",
            "libodd.so.2",
            "apt-get install the package with libodd.so.2",
        ),
        (
            "libcudart.so.12: cannot open shared object file: No such file or directory",
            "there is no CUDA here",
            "pip uninstall mooncake-transfer-engine, then pip install 'omni-async[mooncake]'",
        ),
    ],
)
def test_the_package_cannot_be_loaded(machine: Machine, words: str, said: str, remedy: str) -> None:
    error = unavailable(but(machine, load=raising(ImportError(words))), protocol="tcp")
    assert said in str(error)
    assert remedy in str(error.remedy)


def test_the_package_is_too_old(machine: Machine) -> None:
    old = {checks.PACKAGES[1]: "0.3.9"}
    error = unavailable(but(machine, version=old.get), protocol="tcp")
    assert "0.3.9 is too old" in str(error)
    assert ">=0.3.13" in str(error.remedy)


@pytest.mark.parametrize("version", ["0.3.13", "0.3.14rc1", "0.4", "1.0.0"])
def test_later_packages_are_fine(machine: Machine, version: str) -> None:
    installed = {checks.PACKAGES[1]: version}
    check(options(protocol="tcp"), but(machine, version=installed.get))


def test_a_package_that_is_not_listed_is_believed(machine: Machine) -> None:
    check(options(protocol="tcp"), but(machine, version=lambda name: None))


def test_both_packages(machine: Machine) -> None:
    error = unavailable(but(machine, version=lambda name: "0.3.13"), protocol="tcp")
    assert "both installed" in str(error)
    assert "pip uninstall mooncake-transfer-engine-non-cuda mooncake-transfer-engine" in str(
        error.remedy
    )


# --- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "name", "value"),
    [
        ("tcp", "MC_FORCE_HCA", "1"),
        ("tcp", "MC_TCP_PROTO", "1"),
        ("tcp", "MC_USE_TENT", "1"),
        ("tcp", "MC_DISABLE_METACACHE", "1"),
        ("rdma", "MC_USE_TEV1", ""),
        ("rdma", "MC_FORCE_TCP", "1"),
    ],
)
def test_a_variable_says_otherwise(machine: Machine, protocol: str, name: str, value: str) -> None:
    """The engine goes by them and not by the protocol that it is told."""
    error = contradiction(but(machine, environ={name: value}), protocol=protocol)
    assert error.path == name
    assert f"unset {name}" in str(error)


def test_a_variable_that_agrees(machine: Machine) -> None:
    agreeing = {"MC_FORCE_TCP": "1", "MC_TCP_PROTO": "2"}
    check(options(protocol="tcp"), but(machine, environ=agreeing))


# --- RDMA -----------------------------------------------------------------------------------------


def test_no_rdma_card(machine: Machine, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    error = unavailable(but(machine, root=empty))
    assert "/dev/infiniband" in str(error)
    assert "--device=/dev/infiniband" in str(error.remedy)
    check(options(protocol="tcp"), but(machine, root=empty))


def test_a_device_that_is_not_there(machine: Machine) -> None:
    error = contradiction(machine, device_name="mlx5_0, mlx5_7")
    assert error.path == "device_name"
    assert "no RDMA device 'mlx5_7' (there are: mlx5_0, mlx5_1)" in str(error)
    error = contradiction(but(machine, environ={"RDMA_DEVICE_NAME": "mlx5_0,mlx"}))
    assert "'mlx'" in str(error)


def test_no_port_is_active(machine: Machine, tmp_path: Path) -> None:
    dark = tmp_path / "dark"
    make_root(dark, "mlx5_0", active=False)
    error = unavailable(but(machine, root=dark))
    assert "no port of the RDMA devices mlx5_0 is active" in str(error)
    bare = tmp_path / "bare"
    make_root(bare)
    assert "(there are none)" in str(unavailable(but(machine, root=bare)))


def test_a_card_without_a_driver(machine: Machine) -> None:
    """Otherwise the engine would take TCP without a word."""
    error = unavailable(but(machine, rdma_devices=list))
    assert "no driver for mlx5_0, mlx5_1" in str(error)
    assert "ibverbs-providers" in str(error.remedy)


def test_memory_that_may_not_be_pinned(machine: Machine, tmp_path: Path) -> None:
    root = tmp_path / "user"
    make_root(root, "mlx5_0", locks=False)
    user = but(machine, root=root, rdma_devices=lambda: ["mlx5_0"])
    error = unavailable(user)
    assert "only 8,388,608 bytes may be pinned" in str(error)
    assert "ulimit -l" in str(error.remedy)
    check(options(), but(user, memlock=lambda: GIB))
    check(options(memory_pool_size=None), user)
    check(options(protocol="tcp"), user)


def test_more_than_is_free(machine: Machine) -> None:
    error = contradiction(machine, memory_pool_size=10 * GIB)
    assert error.path == "memory_pool_size"
    assert "10,737,418,240 bytes, but only 8,192,000,000 bytes are free" in str(error)
    check(
        options(protocol="tcp", memory_pool_size=10 * GIB), machine
    )  # untouched pages cost nothing


def test_everything_at_once(machine: Machine, tmp_path: Path) -> None:
    root = tmp_path / "poor"
    make_root(root, "mlx5_0", active=False, locks=False)
    (root / "proc/meminfo").unlink()
    poor = but(
        machine,
        root=root,
        load=raising(ImportError("No module named 'mooncake'")),
        environ={"MC_FORCE_TCP": "1"},
    )
    error = unavailable(poor, device_name="mlx5_3")
    for word in ("cannot be imported", "MC_FORCE_TCP", "'mlx5_3'", "no port", "may be pinned"):
        assert word in str(error)
    assert str(error.remedy).count(";") == 4


def test_a_sandbox_without_proc(machine: Machine, tmp_path: Path) -> None:
    root = tmp_path / "sandbox"
    make_root(root, "mlx5_0")
    for name in ("proc/meminfo", "proc/self/status"):
        (root / name).unlink()
    sandbox = but(machine, root=root, rdma_devices=lambda: ["mlx5_0"])
    check(options(), but(sandbox, memlock=lambda: GIB))


# --- a device -------------------------------------------------------------------------------------


def test_a_pool_on_a_device(machine: Machine) -> None:
    check(options(memory_pool_device="cuda:1", memory_pool_size=64 * GIB), machine)
    trouble = but(machine, device_trouble=lambda device: f"no {device}")
    error = unavailable(trouble, protocol="tcp", memory_pool_device="cuda:1")
    assert "there can be no pool on cuda:1: no cuda:1" in str(error)
    check(options(protocol="tcp"), trouble)


@pytest.mark.parametrize(("built", "fine"), [(True, True), (False, False), (None, True)])
def test_a_build_that_does_not_reach_devices(
    machine: Machine, built: bool | None, fine: bool
) -> None:
    module = types.SimpleNamespace() if built is None else types.SimpleNamespace(SUPPORT_CUDA=built)
    build = but(machine, load=lambda host: module)
    if fine:
        check(options(memory_pool_device="cuda"), build)
    else:
        assert "mooncake-cuda" in str(unavailable(build, memory_pool_device="cuda").remedy)


def test_devices_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = Machine().device_trouble
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "PyTorch cannot be imported" in str(trouble("cuda"))
    runtime = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=runtime))
    assert trouble("cuda:1") is None
    assert trouble("cuda:2") == "there are 2 of them"
    assert trouble("npu") == "PyTorch finds no npu here"


# --- names ----------------------------------------------------------------------------------------


def test_which_devices() -> None:
    environ = {"RDMA_DEVICE_NAME": "mlx5_2"}
    assert named_devices(options(), {}) == []
    assert named_devices(options(), environ) == ["mlx5_2"]
    assert named_devices(options(device_name=" mlx5_0 ,mlx5_1,"), environ) == ["mlx5_0", "mlx5_1"]
