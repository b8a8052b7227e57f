"""What the connector needs of a machine, and what it says where that is not there."""

from __future__ import annotations

import os
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from omni_async import BackendUnavailable, ConfigError
from omni_async.abc import Finding, Sight
from omni_async.abc.findings import fault
from omni_async.backends.mori import MoriTransferEngineBackend, checks
from omni_async.backends.probes.rdma import Device, Port
from omni_async.model import Role, Verb
from omni_async.pool.device import DeviceMemory
from omni_async.testing.doubles import mori
from tests.backends.mori.conftest import native, told

UP = Device("mlx5_0", (Port("1", "ACTIVE"),))
DOWN = Device("mlx5_1", (Port("1", "DOWN"),))
NONE = fault("RDMA", "this host shows no RDMA device", "install a driver", absent=True)
VENDOR = types.SimpleNamespace(IOEngine=types.SimpleNamespace(wait_all=None))
OLD = types.SimpleNamespace(IOEngine=types.SimpleNamespace())


def failing(error: Exception) -> Any:
    def load() -> Any:
        raise error

    return load


def machine(
    devices: Sequence[Device] = (UP,),
    findings: Sequence[Finding] = (),
    environ: dict[str, str] | None = None,
    **facts: Any,
) -> checks.Machine:
    known: dict[str, Any] = {
        "load": lambda: VENDOR,
        "version": lambda _: "1.2.4",
        "device_trouble": lambda _: None,
        "memlock": lambda: 1 << 63,
        **facts,
    }
    return checks.Machine(
        sight=Sight(root=Path("/nowhere"), environ=environ or {}),
        rdma=lambda _: (list(devices), list(findings)),
        **known,
    )


@pytest.mark.parametrize(
    ("load", "said", "remedy"),
    [
        (
            failing(ImportError("No module named 'mori'")),
            "the package amd-mori cannot be imported",
            "omni-async[mori]",
        ),
        (
            failing(ImportError("libamdhip64.so.7: cannot open shared object file")),
            "the library libamdhip64.so.7 is missing",
            "ROCm 7 brings libamdhip64",
        ),
        (failing(OSError("libmori_io.so: no")), "cannot load its libraries", "amd-mori"),
        (
            failing(ImportError("No module named 'torch'")),
            "amd-mori needs PyTorch",
            "PyTorch for ROCm",
        ),
        (
            lambda: types.SimpleNamespace(),
            "the module mori is not that of amd-mori",
            "omni-async[mori]",
        ),
    ],
)
def test_what_is_missing_is_told_with_how_to_get_it(load: Any, said: str, remedy: str) -> None:
    with pytest.raises(BackendUnavailable, match=said) as caught:
        checks.check(told(), machine(load=load))
    assert remedy in str(caught.value.remedy)
    assert caught.value.backend == "MoriTransferEngineConnector"


def test_nothing_is_missing() -> None:
    checks.check(told(), machine())
    checks.check(told(), machine(load=lambda: OLD))  # works, with a warning of the doctor's
    checks.check(told(memory_pool_device="cuda"), machine(memlock=lambda: 0))


@pytest.mark.parametrize(
    ("extra", "devices", "environ", "said"),
    [
        ({}, [], {}, "shows no RDMA device"),
        ({"device_name": "mlx5_9"}, [UP], {}, "there is no RDMA device 'mlx5_9'"),
        ({}, [UP], {"MORI_RDMA_DEVICES": "mlx5_8,mlx5_0"}, "there is no RDMA device 'mlx5_8'"),
        ({"device_name": "mlx5_1"}, [UP, DOWN], {}, "no port of mlx5_1 is active"),
        ({}, [UP], {"MORI_RDMA_DEVICES": "^mlx5_0"}, "leaves no RDMA device"),
        ({}, [UP, DOWN], {"MORI_RDMA_DEVICES": "^mlx5_0"}, "no port of mlx5_1 is active"),
    ],
)
def test_cards(
    extra: dict[str, Any], devices: list[Device], environ: dict[str, str], said: str
) -> None:
    findings = [] if devices else [NONE]
    with pytest.raises(BackendUnavailable, match=said) as caught:
        checks.check(told(**extra), machine(devices, findings, environ))
    assert caught.value.remedy


def test_the_option_goes_before_the_variable() -> None:
    environ = {"MORI_RDMA_DEVICES": "mlx5_9"}
    checks.check(told(device_name="mlx5_0"), machine([UP, DOWN], environ=environ))
    assert checks.named_devices(told(), environ) == "mlx5_9"


def test_xgmi_needs_no_card() -> None:
    extra = {"backend_type": "xgmi", "memory_pool_device": "cuda:1"}
    checks.check(told(**extra), machine([], [NONE]))
    with pytest.raises(BackendUnavailable, match="no pool on cuda:1: there is 1 of them"):
        checks.check(told(**extra), machine(device_trouble=lambda _: "there is 1 of them"))


def test_memory_that_may_not_be_pinned() -> None:
    """Else the vendor ends the process with the first transfer."""
    with pytest.raises(BackendUnavailable, match="may be pinned") as caught:
        checks.check(told(memory_pool_size=1 << 30), machine(memlock=lambda: 1 << 16))
    assert "memlock" in str(caught.value.remedy)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    wrong = machine([], [NONE], load=failing(ImportError("No module named 'mori'")))
    with pytest.raises(BackendUnavailable, match=r"cannot be imported.*; this host shows no RDMA"):
        checks.check(told(), wrong)


def test_findings_for_the_doctor(tmp_path: Path) -> None:
    def seen(extra: dict[str, Any], **facts: Any) -> dict[str, str]:
        found = checks.examine(told(**extra), machine(**facts))
        assert all(one.remedy for one in found if one.status != "ok")
        return {one.subject: one.status for one in found}

    environ = {"MORI_IO_QP_MAX_SEND_WR": "x", "MORI_IO_QP_MAX_CQE": "16384"}
    assert seen({}, environ=environ, load=lambda: OLD) == {
        "package": "warning",
        "memlock": "ok",
        "MORI_IO_QP_MAX_SEND_WR": "fault",
        "MORI_IO_QP_MAX_CQE": "ok",
    }
    xgmi = {"backend_type": "xgmi", "memory_pool_device": "cuda"}
    assert seen(xgmi, environ={"MORI_RDMA_DEVICES": "x"}) == {
        "package": "ok",
        "memory_pool_device": "ok",
        "GPU driver": "fault",
        "device_name": "ok",
    }


# --- the backend's own words ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "cross_host", "on_device"),
    [
        ({}, True, False),
        ({"memory_pool_device": "cuda"}, True, True),
        ({"backend_type": "xgmi", "memory_pool_device": "cuda:1"}, False, True),
    ],
)
def test_facts_follow_from_the_options(
    extra: dict[str, Any], cross_host: bool, on_device: bool
) -> None:
    facts = MoriTransferEngineBackend().capabilities(told(**extra))
    assert (facts.verb, facts.recall, facts.revoke) == (Verb.WRITE, False, True)
    assert (facts.cross_host, facts.device_memory) == (cross_host, on_device)


def test_where_memory_comes_from() -> None:
    pytest.importorskip("torch")
    memory = MoriTransferEngineBackend().memory(told(memory_pool_device="cuda:1"), "sender")
    assert isinstance(memory, DeviceMemory)
    assert memory.device == "cuda:1"


@pytest.mark.parametrize("role", ["sender", "receiver"])
async def test_opening_without_the_vendor(role: Role) -> None:
    backend = MoriTransferEngineBackend()
    if mori.__name__ in str(backend.machine().load):
        pytest.fail("the double was left behind")
    with pytest.raises(BackendUnavailable) as caught:
        await backend.prepare(told(host="127.0.0.1"), role)
    assert caught.value.remedy


async def test_the_engine_knows_ipv4_only() -> None:
    with pytest.raises(ConfigError, match="IPv4 only, and host is ::1"):
        await MoriTransferEngineBackend().prepare(told(host="::1"), "sender")


async def test_the_doctor_asks_the_backend(tmp_path: Path) -> None:
    sight = Sight(root=tmp_path, environ={})
    found = await MoriTransferEngineBackend().examine(told(), "sender", sight)
    assert {"RDMA", "memlock", "package"} <= {one.subject for one in found}


# --- variables that the vendor reads --------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "double_0"])
def test_the_environment_is_as_it_was(
    api: str, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv("MORI_RDMA_DEVICES", raising=False)
    else:
        monkeypatch.setenv("MORI_RDMA_DEVICES", before)
    environ = dict(os.environ)
    made = native(device_name="double_1")
    assert dict(os.environ) == environ
    made.destroy()
    made.destroy()
    for extra, said in ((told(device_name="mlx5_9"), "no active RDMA device"),):
        with pytest.raises(BackendUnavailable, match=said) as caught:
            native(**extra.model_dump(include={"device_name"}))
        assert "ibstat" in str(caught.value.remedy)
    assert dict(os.environ) == environ


def test_what_the_vendor_is_told(api: str) -> None:
    made = native(qp_per_transfer=4, post_batch_size=8, num_workers=2)
    settings = made._engine._rdma.settings
    assert (settings.qp_per_transfer, settings.post_batch_size) == (4, 8)
    assert (settings.num_worker_threads, settings.enable_notification) == (2, False)
    made.destroy()
    made = native(
        backend_type="xgmi", memory_pool_device="cuda", xgmi_num_streams=8, xgmi_num_events=9
    )
    assert (made._engine._xgmi.num_streams, made._engine._xgmi.num_events) == (8, 9)
    made.destroy()
