"""`omni-async config`: what a file means, or all that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_async.cli.demo import default_deploy
from omni_async.cli.main import main


def test_people_get_the_wiring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(default_deploy())]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0].endswith("demo.yaml: 3 stages, 2 edges")
    assert "stage 1\n  receives from 0 over SharedMemoryConnector (shared_memory)" in out
    assert "  sends to 2 over SharedMemoryConnector (shared_memory), memory_pool_size=" in out


def test_machines_get_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", str(default_deploy())]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    meaning = json.loads(out)
    assert meaning["ok"] is True
    assert meaning["stages"][1] == {
        "stage_id": "1",
        "inputs": ["0"],
        "outputs": ["2"],
        "async_chunk": True,
    }
    assert [(edge["from"], edge["to"]) for edge in meaning["edges"]] == [("0", "1"), ("1", "2")]
    assert meaning["edges"][0]["sender"]["knobs"] == {"codec_chunk_frames": 25}


def test_every_mistake_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("stages:\n- {stage_id: 0}\n- {stage_id: 0}\nedges: [{from: 0, to: 4}]\n")
    assert main(["config", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    errors = json.loads(out)["errors"]
    assert [(error["path"], error["line"]) for error in errors] == [
        ("stages[1].stage_id", 3),
        ("edges[0]", 4),
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
