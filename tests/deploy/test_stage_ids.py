"""What may name a stage."""

from __future__ import annotations

import pytest

from omni_async.deploy import load_deploy
from tests.deploy.files import mistakes


@pytest.mark.parametrize("name", ["\n", "a\tb", "x\0", "\x1b[31m"])
def test_control_characters_are_refused(name: str) -> None:
    found = mistakes({"stages": [{"stage_id": name}]})
    assert found["stages[0].stage_id"] == "a stage's name has no control characters"


@pytest.mark.parametrize("name", ["thinker", "語音", "a b", "a/b", "0-1"])
def test_any_other_text_is_a_name(name: str) -> None:
    deploy = load_deploy(
        {
            "stages": [
                {"stage_id": name, "output_connectors": {"to_stage_1": {"name": "shm"}}},
                {"stage_id": 1, "input_connectors": {f"from_stage_{name}": {"name": "shm"}}},
            ]
        }
    )
    assert [wire.name for wire in deploy.wires] == [(name, "1")]
