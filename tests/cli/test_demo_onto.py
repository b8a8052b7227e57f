"""A deploy file with all of its edges over another backend: what stays, what ports there are, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_async import BackendUnavailable, Deploy, load_deploy
from omni_async.cli.demo import closing, default_deploy
from omni_async.cli.demo.layout import Layout
from omni_async.cli.demo.onto import onto, together
from omni_async.cli.demo.served import server_of
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.main import main
from omni_async.cli.on_this_host import LOOPBACK
from omni_async.deploy.endpoints import sender_port, sending_endpoints
from tests.cli.conftest import tune, wav
from tests.cli.demos import DEMO, all_gone, running
from tests.deploy.addressed import AddressedDouble, registered
from tests.engines import need_mooncake
from tests.stores import loaded_or_skip

MOONCAKE = "MooncakeTransferEngineConnector"


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    with registered():
        yield


def moved(file: Any, backend: str, ports: FreePorts) -> Deploy:
    return load_deploy(file, overrides=onto(backend, load_deploy(file), ports))


def row(**extra: Any) -> dict[str, Any]:
    shm = {"name": "SharedMemoryConnector", "extra": extra}
    return {
        "stages": [
            {"stage_id": "ear", "output_connectors": {"to_stage_7": shm}, "devices": "0"},
            {"stage_id": 7, "tensor_parallel_size": 2},
            {"stage_id": "mouth", "input_connectors": {"from_stage_7": "other"}},
        ],
        "connectors": {"other": {"name": "NixlConnector"}},
    }


@pytest.mark.parametrize("alias", ["mooncake", MOONCAKE])
def test_every_edge_goes_over_it_and_knobs_stay(alias: str, ports: FreePorts) -> None:
    deploy = moved(default_deploy(), alias, ports)
    assert {end.name for wire in deploy.wires for end in (wire.sender, wire.receiver)} == {MOONCAKE}
    for wire in deploy.wires:
        assert wire.sender.settings == wire.receiver.settings
        assert wire.sender.options["memory_pool_size"] == 32 << 20
        assert wire.sender.options["protocol"] == "tcp"
        assert wire.sender.knobs == {"codec_chunk_frames": 25}


def test_each_sender_has_a_port_that_is_kept(ports: FreePorts) -> None:
    file = row(socket_dir="/x", memory_pool_size=1 << 20, note="$5")
    deploy = moved(file, "addressed", ports)
    assert Layout.of(deploy).stages == ("ear", "7", "mouth")
    for wire in deploy.wires:
        sender = wire.name.from_stage
        assert sender_port(deploy.stages, sender, wire.sender, 0, 0) == ports.of(sender)
        assert wire.sender.options["host"] == LOOPBACK
    first, second = (wire.sender for wire in deploy.wires)
    assert first.options["memory_pool_size"] == 1 << 20
    assert "socket_dir" not in first.options
    assert first.knobs == {"note": "$5"}
    assert "memory_pool_size" not in second.options
    assert len({endpoint.port for endpoint in sending_endpoints(deploy.stages)}) == 3
    assert deploy.stage("ear").others == {"devices": "0"}


def test_backends_without_addresses_get_none(ports: FreePorts) -> None:
    deploy = moved(default_deploy(), "memory", ports)
    assert [sorted(wire.sender.options) for wire in deploy.wires] == [["memory_pool_size"]] * 2
    assert Layout.of(deploy).processes == (("0", "1", "2"),)


def test_it_streams_or_not_as_before(ports: FreePorts) -> None:
    over = onto("addressed", load_deploy(default_deploy()), ports)
    layout = Layout.of(load_deploy(default_deploy(), overrides=over))
    off = load_deploy(default_deploy(), overrides=together(over, layout.without_streaming()))
    assert [plan.async_chunk for plan in off.stages.values()] == [False] * 3
    assert Layout.of(off)._replace(streaming=True).wires == layout.wires
    assert together({}, {"async_chunk": False}) == {"async_chunk": False}


async def test_what_cannot_run_here_is_told_with_its_edge(
    ports: FreePorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout.of(moved(default_deploy(), "addressed", ports))
    await layout.check_backends()

    async def prepare(*_: Any) -> None:
        raise BackendUnavailable("libx is missing", remedy="apt-get install libx")

    monkeypatch.setattr(AddressedDouble, "prepare", prepare)
    with pytest.raises(BackendUnavailable, match="0->1: libx is missing; apt-get install libx"):
        await layout.check_backends()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("backend", "kind", "told"),
    [
        ("mooncak", "ConfigError", "no backend is called 'mooncak'; did you mean 'mooncake'?"),
        (
            "later",
            "BackendUnavailable",
            "0->1: LaterConnector is not part of this release",
        ),
    ],
)
def test_what_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str, kind: str, told: str
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "tune.wav"
    path.write_bytes(wav(tune(0.1).tobytes()))
    output = tmp_path / "out"
    command = ["demo", "--json", "--backend", backend, "--input", path, "--output", output]
    assert main([*map(str, command)]) == 1
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["type"] == kind
    assert told in error["text"]
    assert said.err == f"omni-async demo: {error['text']}\n"
    assert not output.exists()


def test_two_demos_over_mooncake_do_not_meet(tmp_path: Path) -> None:
    """At ports of their own, and each identical to the same without any transport."""
    pytest.importorskip("torch")
    need_mooncake()
    recording = tmp_path / "tune.wav"
    recording.write_bytes(wav(tune(1.5).tobytes()))
    command = [*DEMO, "--json", "--backend", "mooncake", "--requests", "2", "--input", recording]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [
        subprocess.Popen(
            [*map(str, command), "--output", str(tmp_path / name)],
            **pipes,  # type: ignore[call-overload]
        )
        for name in ("one", "other")
    ]
    for demo in both:
        stdout, stderr = demo.communicate(timeout=55)
        assert demo.returncode == 0, stderr
        result = json.loads(stdout)
        assert result["identical"] is True
        assert result["without_streaming"]["identical"] is True
        assert {edge["connector"] for edge in result["edges"]} == {MOONCAKE}


STORES = {"mooncake-store": "mooncake.store", "yuanrong": "yr.datasystem.kv_client"}


def test_a_stores_server_is_told_to_both_ends(ports: FreePorts) -> None:
    with closing(server_of("mooncake-store")) as server:
        assert server is not None
        over = onto("mooncake-store", load_deploy(default_deploy()), ports, server)
        deploy = load_deploy(default_deploy(), overrides=over)
        for wire in deploy.wires:
            for role, end in (("sender", wire.sender), ("receiver", wire.receiver)):
                assert end.name == "MooncakeStoreConnector"
                told = server.extra(role)  # type: ignore[arg-type]
                assert {name: end.options[name] for name in told} == told
                assert end.options["memory_pool_size"] == 32 << 20
    assert server_of("shm") is None
    assert server_of("mooncak") is None
    assert server_of(None) is None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", STORES)
def test_over_a_store(tmp_path: Path, backend: str) -> None:
    """With a server of its own: the same figures as over shared memory, and the same files."""
    pytest.importorskip("torch")
    loaded_or_skip(STORES[backend])
    recording = tmp_path / "tune.wav"
    recording.write_bytes(wav(tune(1.5).tobytes()))
    results = {}
    for name in (backend, "shm"):
        command = [*DEMO, "--json", "--backend", name, "--requests", "2", "--input", recording]
        less = [] if name == backend else ["--no-compare"]
        done = subprocess.run(
            [*map(str, command), *less, "--output", str(tmp_path / name)],
            capture_output=True,
            text=True,
            timeout=55,
        )
        assert (done.returncode, done.stderr) == (0, "")
        results[name] = json.loads(done.stdout)
    stored, mapped = results.values()
    assert stored["identical"] is stored["without_streaming"]["identical"] is True
    assert stored.keys() == mapped.keys()
    for ours, theirs in zip(stored["edges"], mapped["edges"], strict=True):
        assert ours.keys() == theirs.keys()
        for same in ("edge", "sent", "received"):
            assert ours[same] == theirs[same]
    for name in ("req-0.wav", "req-1.wav"):
        assert (tmp_path / backend / name).read_bytes() == (tmp_path / "shm" / name).read_bytes()


@pytest.mark.soak
@pytest.mark.timeout(90)
@pytest.mark.parametrize("backend", STORES)
def test_its_server_goes_when_the_demo_is_killed(tmp_path: Path, backend: str) -> None:
    pytest.importorskip("torch")
    loaded_or_skip(STORES[backend])
    recording, output = tmp_path / "tune.wav", tmp_path / "out"
    recording.write_bytes(wav(tune(60.0).tobytes()))
    command = ("--backend", backend, "--input", recording, "--output", output)
    with running(*command, count=5) as (process, children):  # the server is one of them
        process.kill()
        assert any(all_gone(children) for _ in range(3))  # who reaps them may be busy


@pytest.mark.parametrize("backend", STORES)
def test_a_store_whose_package_is_missing(tmp_path: Path, backend: str) -> None:
    pytest.importorskip("torch")
    for module in ("mooncake", "yr", "datasystem"):
        (tmp_path / module).mkdir()
        refusal = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')"
        (tmp_path / module / "__init__.py").write_text(refusal)
    recording, output = tmp_path / "tune.wav", tmp_path / "out"
    recording.write_bytes(wav(tune(0.1).tobytes()))
    root = str(Path(__file__).parents[2])
    command = [*DEMO, "--json", "--backend", backend, "--input", recording, "--output", output]
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])},
    )
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "BackendUnavailable"
    assert f"pip install 'omni-async[{backend.partition('-')[0]}]'" in error["text"]
    assert done.stderr == f"omni-async demo: {error['text']}\n"
    assert not output.exists()
