"""What is missing on a machine, or contradicts it, is told before anything opens: with ``hccn_tool`` as a script."""

from __future__ import annotations

import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omni_async import BackendUnavailable, ConfigError
from omni_async.abc import Sight
from omni_async.backends.yuanrong_te import YuanrongTransferEngineBackend, checks
from omni_async.backends.yuanrong_te.config import YuanrongTransferEngineOptions

TOOL = """#!/bin/sh
if [ "$3" = "-ping" ]; then command="$2 ping $6"; else command="$2 $3"; fi
file={folder}/answers/$(echo "$command" | tr ' ' _)
[ -f "$file.slow" ] && exec sleep 30
if [ -f "$file" ]; then cat "$file"; else echo "nobody asked for $command"; fi
"""
GOOD = {
    "-ip": "ipaddr:10.86.1.8{npu}\nnetmask:255.255.255.0",
    "-link": "link status: UP",
    "-net_health": "net health status: Success",
}


class Host:
    """A machine with the tool, the device files and the packages that a test gives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ: dict[str, str] = {"PATH": "/usr/bin:/bin"}
        self.answers = folder / "answers"
        self.answers.mkdir()
        tools = folder / checks.DRIVER.lstrip("/")
        tools.mkdir(parents=True)
        self.tool = tools / "hccn_tool"
        self.tool.write_text(TOOL.format(folder=folder))
        self.tool.chmod(0o755)
        (folder / "dev").mkdir()
        self.load: Any = lambda: types.SimpleNamespace()
        self.trouble: dict[str, str] = {}

    def npu(self, number: int, **printed: str) -> None:
        """An NPU in good health, but for what is said otherwise."""
        (self.folder / "dev" / f"davinci{number}").touch()
        for option, text in {**GOOD, **{f"-{k}": v for k, v in printed.items()}}.items():
            (self.answers / f"{number}_{option}").write_text(text.format(npu=number))

    def pings(self, npu: int, address: str, loss: str) -> None:
        text = f"3 packets transmitted, {loss}% packet loss"
        (self.answers / f"{npu}_ping_{address}").write_text(text)

    @property
    def machine(self) -> checks.Machine:
        return checks.Machine(
            Sight(self.folder, self.environ),
            load=self.load,
            version=lambda package: "0.8.1",
            npu_trouble=self.trouble.get,
        )

    def check(self, number: int = 0, **extra: Any) -> str:
        return checks.check(told(host="10.0.0.1", **extra), number, self.machine)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def told(**extra: Any) -> YuanrongTransferEngineOptions:
    return YuanrongTransferEngineOptions.model_validate(extra)


# --- before opening -------------------------------------------------------------------------------


def test_all_is_well(host: Host) -> None:
    host.npu(2)
    assert host.check(2) == "10.86.1.82"


def test_the_tools_number_is_that_of_the_host(host: Host) -> None:
    """A process that sees NPUs 4 and 6 calls the second of them 1."""
    host.environ["ASCEND_RT_VISIBLE_DEVICES"] = "4,6"
    host.npu(6)
    assert host.check(1) == "10.86.1.86"


@pytest.mark.parametrize(
    ("printed", "said", "remedy"),
    [
        (
            {"ip": "Get ipconf failed, because no ip was preset there!"},
            "no address is set",
            "-ip -s",
        ),
        ({"link": "link status: DOWN"}, "NPU 0 link: down", "-link_stat"),
    ],
)
def test_an_npu_that_reaches_no_other(
    host: Host, printed: dict[str, str], said: str, remedy: str
) -> None:
    host.npu(0, **printed)
    with pytest.raises(BackendUnavailable, match=said) as caught:
        host.check()
    assert remedy in str(caught.value.remedy)
    assert caught.value.backend == "YuanrongTransferEngineConnector"


@pytest.mark.parametrize(
    "printed", [{"ip": "ipaddr:fe80::1"}, {"net_health": "net health status: Init"}]
)
def test_what_may_still_work_stops_nobody(host: Host, printed: dict[str, str]) -> None:
    host.npu(0, **printed)
    host.check()


def test_a_host_without_the_tool(host: Host) -> None:
    host.tool.unlink()
    with pytest.raises(BackendUnavailable, match="hccn_tool: it is not here") as caught:
        host.check()
    assert "mount" in str(caught.value.remedy)


def test_a_tool_that_does_not_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.npu(0)
    (host.answers / "0_-ip.slow").touch()
    monkeypatch.setattr(checks, "TOOL_LIMIT", 0.2)
    begun = time.monotonic()
    with pytest.raises(BackendUnavailable, match=r"does not end within 0\.2 s"):
        host.check()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("error", "said", "remedy"),
    [
        ("No module named 'yr'", "cannot be imported", "omni-async[yuanrong]"),
        ("libexpat.so.1: cannot open shared object file", "libexpat.so.1 is missing", "libexpat1"),
        ("libpython3.11.so.1.0: cannot open", "libpython3.11.so.1.0 is missing", "libpython3.X"),
        ("libascendcl.so: cannot open", "libascendcl.so is missing", "set_env.sh"),
    ],
)
def test_a_package_that_is_not_whole(host: Host, error: str, said: str, remedy: str) -> None:
    host.npu(0)

    def load() -> Any:
        raise ImportError(error)

    host.load = load
    with pytest.raises(BackendUnavailable, match=said) as caught:
        host.check()
    assert remedy in str(caught.value.remedy)


def test_all_is_told_at_once(host: Host) -> None:
    host.npu(0, link="link status: DOWN")
    host.trouble["npu:0"] = "the package torch_npu cannot be imported"
    with pytest.raises(BackendUnavailable) as caught:
        host.check()
    assert "no pool on npu:0: the package torch_npu" in str(caught.value)
    assert "link: down" in str(caught.value)


@pytest.mark.parametrize("address", ["::1", "fe80::1", "a.name"])
def test_the_engine_listens_on_ipv4_only(host: Host, address: str) -> None:
    with pytest.raises(ConfigError, match="IPv4 only") as caught:
        checks.check(told(host=address), 0, host.machine)
    assert caught.value.path == "host"


# --- which NPU ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "environ", "number"),
    [
        ({}, {}, 0),
        ({}, {"LOCAL_RANK": "3"}, 3),
        ({"device_name": "npu:2"}, {"LOCAL_RANK": "3"}, 2),
        ({"memory_pool_device": "npu:1"}, {"LOCAL_RANK": "3"}, 1),
        ({"device_name": "npu:1", "memory_pool_device": "npu:1"}, {}, 1),
        ({"device_name": ""}, {"LOCAL_RANK": "1", "ASCEND_RT_VISIBLE_DEVICES": "5"}, 0),
    ],
)
def test_which_npu(extra: dict[str, Any], environ: Mapping[str, str], number: int) -> None:
    assert checks.device_of(told(**extra), environ) == number


def test_two_options_that_contradict_each_other() -> None:
    options = told(device_name="npu:0", memory_pool_device="npu:1")
    with pytest.raises(ConfigError, match="its own NPU only") as caught:
        checks.device_of(options, {})
    assert caught.value.path == "memory_pool_device"


def test_a_variable_that_holds_no_rank() -> None:
    with pytest.raises(ConfigError, match="LOCAL_RANK"):
        checks.device_of(told(), {"LOCAL_RANK": "first"})


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "npu:x", 0])
def test_a_pool_anywhere_else_is_refused(device: Any) -> None:
    with pytest.raises(ValueError, match="memory_pool_device"):
        told(memory_pool_device=device)


# --- for the doctor -------------------------------------------------------------------------------


class OnHost(YuanrongTransferEngineBackend):
    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def machine(self, sight: Sight) -> checks.Machine:
        return self._host.machine


async def test_examination_tries_every_pair(host: Host) -> None:
    for npu in range(3):
        host.npu(npu)
        for other in range(3):
            host.pings(npu, f"10.86.1.8{other}", "0.00")
    host.pings(2, "10.86.1.80", "66.67")
    sight = Sight(host.folder, host.environ)
    told_of = await OnHost(host).examine(told(), "receiver", sight)
    found = {one.subject: one for one in told_of}
    pairs = {name: one.status for name, one in found.items() if " to " in name}
    assert pairs == {
        f"NPU {npu} to 10.86.1.8{other}": "fault" if (npu, other) == (2, 0) else "ok"
        for npu in range(3)
        for other in range(3)
        if npu != other
    }
    assert {"NPUs", "package", "NPU 1 address", "NPU 1 link", "NPU 1 network"} <= set(found)


def test_npus_of_the_host(host: Host) -> None:
    assert checks.npus(host.machine) == []
    [finding] = checks.devices(host.machine)
    assert (finding.status, finding.absent) == ("fault", True)
    for npu in (1, 10, 2):
        host.npu(npu)
    (host.folder / "dev" / "davinci_manager").touch()
    assert checks.npus(host.machine) == [1, 2, 10]
    [finding] = checks.devices(host.machine)
    assert finding.status == "ok"
    host.environ["ASCEND_RT_VISIBLE_DEVICES"] = "2,1"
    assert checks.npus(host.machine) == [1, 2]


async def test_a_machine_with_nothing(host: Host) -> None:
    """Every finding at fault says what to do, and none is raised."""
    host.tool.unlink()
    host.trouble["npu:0"] = "PyTorch finds no npu here"

    def load() -> Any:
        raise ImportError("No module named 'yr'")

    host.load = load
    backend = OnHost(host)
    told_of = await backend.examine(told(), "receiver", Sight(host.folder, host.environ))
    faults = [one for one in told_of if one.status == "fault"]
    wanted = {"NPUs", "hccn_tool", "memory_pool_device", "package"}
    assert {one.subject for one in faults} == wanted
    assert all(one.remedy for one in faults)
    wrong = told(device_name="npu:0", memory_pool_device="npu:1")
    [finding] = await backend.examine(wrong, "receiver", Sight(host.folder))
    assert finding.subject == "memory_pool_device"
