"""Configuration: what is wrong is refused at load, and what was asked for is what happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omni_async
from omni_async.cli.main import main
from tests.deploy.addressed import registered


def refused(source: Any) -> str:
    with pytest.raises(omni_async.ConfigError) as caught:
        omni_async.load_deploy(source)
    return str(caught.value)


def stages(**first: Any) -> dict[str, Any]:
    return {"stages": [{"stage_id": 0, **first}, {"stage_id": 1}]}


# --- I1: unknown keys and overrides accepted and ignored ------------------------------------------


@pytest.mark.parametrize(
    ("source", "place", "text"),
    [
        ({**stages(), "conectors": {}}, "conectors", "did you mean 'connectors'"),
        (
            stages(output_connectors={"to_stag_1": {"name": "shm"}}),
            "stages[0].output_connectors.to_stag_1",
            "not of the form 'to_stage_<stage_id>'",
        ),
        (
            {
                **stages(output_connectors={"to_stage_1": "fsat"}),
                "connectors": {"fast": {"name": "shm"}},
            },
            "stages[0].output_connectors.to_stage_1",
            "did you mean 'fast'",
        ),
        ({**stages(), "edges": [{"from": 0, "to": 7}]}, "edges[0]", "there is no stage '7'"),
        (
            {**stages(), "edges": [{"from": 0, "to": 1, "window_size": "4"}]},
            "edges[0].window_size",
            "a whole number",
        ),
        ({**stages(), "async_chunk": "false"}, "async_chunk", "true or false, not 'false'"),
    ],
)
def test_each_is_refused_with_its_path_and_the_nearest_name(
    source: Any, place: str, text: str
) -> None:
    told = refused(source)
    assert place in told
    assert text in told


def test_a_doubled_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("stages:\n- stage_id: 0\nstages:\n- stage_id: 1\n")
    assert "stages (line 3): this key stands here twice" in refused(path)


# --- I3: a configuration that is not there --------------------------------------------------------


def test_a_wrong_path_an_empty_file_and_a_directory(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    for path in (tmp_path / "none.yaml", empty, tmp_path):
        assert str(path) in refused(path)


# --- I4: phantom connectors, and one connector for a stage ----------------------------------------


async def test_first_and_last_stage_need_no_phantom_and_the_middle_has_two_kinds(
    namespace: str,
) -> None:
    """Shared memory into the middle stage, a connector with ports out of it."""
    with registered():
        deploy = omni_async.load_deploy(
            {
                "stages": [
                    {"stage_id": 0, "output_connectors": {"to_stage_1": {"name": "shm"}}},
                    {"stage_id": 1, "output_connectors": {"to_stage_2": {"name": "addressed"}}},
                    {"stage_id": 2},
                ]
            }
        )
        async with (
            omni_async.open_stage(deploy, 0, namespace=namespace) as first,
            omni_async.open_stage(deploy, 1, namespace=namespace) as middle,
            omni_async.open_stage(deploy, 2, namespace=namespace) as last,
        ):
            assert (list(first.inputs), list(last.outputs)) == ([], [])
            await first.output(1).put("k", [1, 2])
            item = await middle.input(0).get("k", timeout=5)
            await middle.output(2).put("k", [*item.value, 3])
            assert (await last.input(1).get("k", timeout=5)).value == [1, 2, 3]


# --- C9: "off" is ignored because what was loaded later won ---------------------------------------


def test_an_explicit_false_wins_and_can_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("stages:\n- {stage_id: 0}\n- {stage_id: 1}\n")
    assert omni_async.load_deploy(path).stage(0).async_chunk  # on by default
    path.write_text("async_chunk: true\n" + path.read_text())
    deploy = omni_async.load_deploy(path, overrides={"async_chunk": False})
    assert [plan.async_chunk for plan in deploy.stages.values()] == [False, False]
    assert deploy.dump()["async_chunk"] is False
    assert deploy.origin("async_chunk").kind == "call"

    path.write_text(path.read_text().replace("true", "false"))
    assert main(["config", str(path), "--json"]) == 0
    for stage in json.loads(capsys.readouterr().out)["stages"]:
        assert stage["async_chunk"] == {"value": False, "from": "file (line 1)"}
