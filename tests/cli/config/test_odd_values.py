"""Values that YAML has and JSON has not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_async.cli.main import main

ODD = """\
connectors:
  a:
    name: shm
    extra: {day: 2001-01-01, raw: !!binary aGk=, nan: .nan, inf: -.inf, map: {1: [2.5, null]}}
stages:
- {stage_id: 0, output_connectors: {to_stage_1: a}}
- {stage_id: 1}
"""


def test_odd_knobs_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(ODD)
    assert main(["config", str(path)]) == 0
    assert " 2001-01-01 " in capsys.readouterr().out
    assert main(["config", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    knobs = told["edges"][0]["sender"]["knobs"]
    assert {key: knob["value"] for key, knob in knobs.items()} == {
        "day": "2001-01-01",
        "raw": "b'hi'",
        "nan": "nan",
        "inf": "-inf",
        "map": {"1": [2.5, None]},
    }
