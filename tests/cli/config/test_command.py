"""`omni-async config`: what a file means, or all that is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from omni_async import ClosedError, load_deploy
from omni_async.cli import config
from omni_async.cli.config.command import page
from omni_async.cli.config.text import spelled
from omni_async.cli.demo import default_deploy
from omni_async.cli.main import main

from .pipelines import deployments

TWELVE = Path(__file__).parents[3] / "examples" / "deploy" / "twelve_stages.yaml"

BASE = """\
connectors:
  wire:
    name: NixlConnector
    extra: {zmq_port: "$PORT", codec_chunk_frames: 25}
stages:
- stage_id: 0
  num_replicas: 2
  output_connectors: {to_stage_1: wire}
- stage_id: 1
"""
OVER = """\
base_config: base.yaml
connectors:
  wire:
    extra: {num_threads: 8}
  idle: {name: MemoryConnector}
edges:
- {from: 0, to: 1, window_size: 4}
platforms:
  npu:
    stages:
    - {stage_id: 0, host: node-a}
"""


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file over a base, with a platform's section and a port from the environment."""
    monkeypatch.setenv("PORT", "50071")
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "over.yaml").write_text(OVER)
    return tmp_path / "over.yaml"


def test_people_get_a_drawing_and_every_value_with_its_origin(
    layered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", str(layered), "--platform", "npu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    heading, text = out.split("\n", 1)
    assert heading == f"{layered} on platform npu: 2 stages, 1 edge"
    assert text.startswith(
        """
┌─────────────┐
│   stage 0   │
│ 2 replicas  │
│  on node-a  │
└──────┬──────┘
       │ nixl
       ▼ node-a:50071
  ┌─────────┐
  │ stage 1 │
  └─────────┘

nixl = NixlConnector
host:port = where receivers find rank 0 of the sender's replica 0

stage 0
  host          node-a  platform npu (line 11)
  num_replicas  2       base base.yaml (line 7)
  default: tensor_parallel_size=1, async_chunk=true
  listens at 50071-50072 for request_forwarding over NixlConnector 'wire'
  sends over NixlConnector 'wire', node-a:50071
    to 1  base base.yaml (line 8)
    window_size         4      file (line 7)
    zmq_port            50071  environment $PORT
    num_threads         8      file (line 4)
    codec_chunk_frames  25     base base.yaml (line 4)
    default: max_inflight=-1, memory_pool_size=null,"""
    )
    assert text.endswith("\nconnectors that no edge uses\n  idle  file (line 5)\n")


def test_one_stage_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(TWELVE), "--stage", "9"]) == 0
    out, _ = capsys.readouterr()
    drawing, listing = out.split("\nshm = SharedMemoryConnector\n")
    assert [f"stage {n}" in drawing for n in (6, 9, 11, 5)] == [True, True, True, False]
    assert [line for line in listing.splitlines() if line.startswith("stage")] == ["stage 9"]


def test_a_stage_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("stages: [{stage_id: thinker}, {stage_id: talker}]")
    with pytest.raises(SystemExit) as ended:
        main(["config", str(path), "--stage", "thinkr", "--json"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "ok": False,
        "error": {
            "type": "UsageError",
            "text": f"{path} has no stage 'thinkr'; did you mean 'thinker'?",
        },
    }
    assert err.startswith("usage: omni-async config [-h] [--stage N]")
    assert err.endswith("did you mean 'thinker'?\n")


def test_machines_get_one_object(layered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", "--platform", "npu", str(layered)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    meaning = json.loads(out)
    assert [meaning[key] for key in ("ok", "file", "platform", "unused_connectors")] == [
        True,
        str(layered),
        "npu",
        ["idle"],
    ]
    stage, _ = meaning["stages"]
    assert stage["host"] == {"value": "node-a", "from": "platform npu (line 11)"}
    assert stage["async_chunk"] == {"value": True, "from": "default"}
    assert (stage["inputs"], stage["outputs"]) == ([], ["1"])
    assert [
        (each["replica"], each["rank"], each["host"], each["port"]) for each in stage["endpoints"]
    ] == [(0, 0, "node-a", 50071), (1, 0, "node-a", 50072)]
    [edge] = meaning["edges"]
    assert (edge["from"], edge["to"], edge["backend"], edge["feedback"]) == (
        "0",
        "1",
        "nixl",
        False,
    )
    assert (edge["same_host"], edge["endpoint"]) == (False, {"host": "node-a", "port": 50071})
    assert edge["window_size"] == {"value": 4, "from": "file (line 7)"}
    assert edge["sender"]["name"] == {"value": "NixlConnector", "from": "base base.yaml (line 8)"}
    assert edge["receiver"]["name"] == edge["sender"]["name"]
    assert edge["sender"]["options"]["zmq_port"] == {"value": 50071, "from": "environment $PORT"}
    assert edge["sender"]["options"]["peer_timeout"] == {"value": 30.0, "from": "default"}
    assert edge["sender"]["knobs"] == {
        "codec_chunk_frames": {"value": 25, "from": "base base.yaml (line 4)"}
    }


def test_what_is_all_written_has_no_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(
        "async_chunk: false\nstages:\n"
        "- {stage_id: 0, host: a, num_replicas: 3, tensor_parallel_size: 1}\n"
    )
    assert main(["config", str(path)]) == 0
    assert capsys.readouterr().out.endswith(
        """
stage 0
  host                  a      file (line 3)
  num_replicas          3      file (line 3)
  tensor_parallel_size  1      file (line 3)
  async_chunk           false  file (line 1)
"""
    )


def test_an_edge_that_names_nothing_is_filled_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "deploy.json"
    path.write_text(
        '{"stages": [{"stage_id": 0}, {"stage_id": 1}], "edges": [{"from": 0, "to": 1}]}'
    )
    assert main(["config", "--json", str(path)]) == 0
    [edge] = json.loads(capsys.readouterr().out)["edges"]
    assert edge["sender"]["name"] == {"value": "SharedMemoryConnector", "from": "default"}
    assert (edge["same_host"], edge["endpoint"]) == (True, None)


def test_a_section_for_a_platform_may_stand_in_a_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").mkdir()
    base = "stages: [{stage_id: 0}]\nplatforms:\n  npu: {stages: [{stage_id: 0, host: a}]}\n"
    (tmp_path / "deep" / "base.yaml").write_text(base)
    (tmp_path / "over.yaml").write_text("base_config: deep/base.yaml\n")
    assert main(["config", "--json", "--platform", "npu", str(tmp_path / "over.yaml")]) == 0
    [stage] = json.loads(capsys.readouterr().out)["stages"]
    assert stage["host"] == {"value": "a", "from": "platform npu of deep/base.yaml (line 3)"}


def test_every_mistake_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("stages:\n- {stage_id: 0}\n- {stage_id: 0}\nedges: [{from: 0, to: 4}]\n")
    assert main(["config", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    errors = json.loads(out)["errors"]
    assert [(error["path"], error["line"], error["file"]) for error in errors] == [
        ("stages[1].stage_id", 3, str(path)),
        ("edges[0]", 4, str(path)),
    ]
    assert all(error["text"] in err for error in errors)


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(tmp_path / "none.yaml"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["ok"] is False
    assert "there is no such file" in json.loads(out)["errors"][0]["text"]
    assert err.startswith("omni-async config: ")
    assert main(["config", str(tmp_path / "none.yaml")]) == 1
    assert capsys.readouterr().out == ""


def test_an_address_in_the_environment_is_shown_or_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_ASYNC_STAGE_5_HOST", "[fd00::5]")
    assert main(["config", str(TWELVE), "--stage", "8"]) == 0
    assert "[fd00::5]:51056" in capsys.readouterr().out
    monkeypatch.setenv("OMNI_ASYNC_STAGE_5_HOST", "no address")
    assert main(["config", str(TWELVE), "--json"]) == 1
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert "OMNI_ASYNC_STAGE_5_HOST" in error["text"]


def test_the_svg_is_written_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.svg"
    assert main(["config", str(default_deploy()), "--svg", str(target)]) == 0
    assert "stage 0" in capsys.readouterr().out
    assert target.read_text(encoding="utf-8").startswith("<svg ")
    with pytest.raises(SystemExit):
        main(["config", str(default_deploy()), "--svg", str(tmp_path / "none" / "out.svg")])
    assert "out.svg cannot be written (No such file or directory)" in capsys.readouterr().err


def test_the_schema_needs_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--schema"]) == 0
    assert "$schema" in json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["config"])
    assert "FILE is missing" in capsys.readouterr().err


def test_a_terminal_too_narrow_gets_a_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "34")
    assert main(["config", str(TWELVE)]) == 0
    out, _ = capsys.readouterr()
    assert "(does not fit 34 columns as a graph; --svg draws it)" in out
    assert "│ ┄▶ stage 5  mooncake" in out
    assert "[fd00::5]" not in out


@given(deployments())
def test_every_stage_and_every_edge_is_told(deploy: dict[str, Any]) -> None:
    lines = page(load_deploy(deploy), None, 100, "utf-8")
    text = "\n".join(lines)
    for stage in deploy["stages"]:
        id = spelled(stage["stage_id"])
        assert text.count(f"\nstage {id}\n") == 1
        block = text.split(f"\nstage {id}\n")[1].split("\n\nstage ")[0].splitlines()
        told = [line.strip().removesuffix(" (feedback)") for line in block]
        for key in stage["output_connectors"]:
            to = spelled(key.removeprefix("to_stage_"))
            assert any(line.startswith(f"to {to}") for line in told), block


def test_a_reader_that_has_seen_enough_ends_it_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert main(["config", str(TWELVE)]) == 141
    assert capsys.readouterr().err == ""


def test_an_old_terminal_gets_ascii() -> None:
    command = [sys.executable, "-m", "omni_async.cli.main", "config", str(TWELVE)]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=env)
    assert done.returncode == 0, done.stderr
    assert "| 2 replicas x 2 ranks  |" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--json"], "COMMAND"),
        (["config", "--json"], "FILE is missing"),
        (["config", "--jso", "--nothing"], "--nothing"),
        (["demo", "--json", "--requests", "0"], "--requests"),
        (["bench", "none", "--json"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_told_to_machines_too(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["type"] == "UsageError"
    assert text in json.loads(out)["error"]["text"]
    assert err.startswith("usage: omni-async")
    assert text in err
    with pytest.raises(SystemExit):
        main(["config", "--", "--json", "more"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "object"),
    [
        ([], ""),
        (["--json"], '{"ok": false, "error": {"type": "ClosedError", "text": "is closed"}}\n'),
    ],
)
def test_an_error_of_ours_is_no_traceback(
    arguments: list[str],
    object: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(_: Any) -> int:
        raise ClosedError("is closed")

    monkeypatch.setattr(config, "run", fails)
    assert main(["config", "file", *arguments]) == 1
    assert capsys.readouterr() == (object, "omni-async config: is closed\n")


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "run", interrupted)
    assert main(["config", "file"]) == 130


def test_the_commands_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "demo" in text
    assert "config" in text
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("omni-async ")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
