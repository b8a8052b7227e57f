"""A file over its bases, a platform over both: what wins, and where it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_async import ConfigError
from omni_async.deploy import load_deploy
from tests.deploy.files import mistakes, three_stages

BASE = """\
async_chunk: false
trust_remote_code: true
connectors:
  fast: {name: shm, extra: {memory_pool_size: 1048576, codec_chunk_frames: 25}}
stages:
- {stage_id: 0, devices: "0", default_sampling_params: {seed: 1, top_k: 2}, output_connectors: {to_stage_1: fast}}
- {stage_id: 1, devices: "1"}
edges:
- {from: 0, to: 1, max_inflight: 4}
platforms:
  npu:
    stages: [{stage_id: 1, devices: "7", num_replicas: 2}]
"""
OVERLAY = """\
base_config: base.yaml
connectors:
  fast:
    extra: {codec_chunk_frames: 50, codec_left_context_frames: 3}
stages:
- {stage_id: 2}
- {stage_id: 0, default_sampling_params: {top_k: 5}}
platforms:
  npu:
    stages: [{stage_id: 0, host: npu-1}, {stage_id: 1, num_replicas: 3}]
"""


@pytest.fixture
def overlay(write: Any) -> Path:
    write(BASE, "base.yaml")
    path: Path = write(OVERLAY)
    return path


def test_connectors_are_merged_deep_and_stages_by_id(overlay: Path) -> None:
    deploy = load_deploy(overlay)

    assert list(deploy.stages) == ["0", "1", "2"]  # the base's order, then new ones
    assert not deploy.stage(0).async_chunk
    assert deploy.stage(0).others == {
        "devices": "0",
        "default_sampling_params": {"seed": 1, "top_k": 5},
    }
    (wire,) = deploy.wires
    assert wire.sender.options == {"memory_pool_size": 1048576}
    assert wire.sender.knobs == {"codec_chunk_frames": 50, "codec_left_context_frames": 3}
    assert wire.max_inflight == 4
    assert deploy.model.model_extra == {"trust_remote_code": True}


def test_a_base_of_a_base_in_another_folder(tmp_path: Path, write: Any) -> None:
    (tmp_path / "bases").mkdir()
    write(BASE, "bases/base.yaml")
    write("base_config: base.yaml\nstages: [{stage_id: 1, host: b}]\n", "bases/middle.yaml")
    path = write("base_config: bases/middle.yaml\nstages: [{stage_id: 0, host: b}]\n")
    deploy = load_deploy(path)
    assert [plan.host for plan in deploy.stages.values()] == ["b", "b"]
    assert deploy.stage(1).others == {"devices": "1"}


def test_a_mapping_has_bases_too(overlay: Path) -> None:
    deploy = load_deploy({"base_config": str(overlay), "async_chunk": True})
    assert deploy.stage(1).async_chunk


def test_a_base_in_an_older_shape(write: Any) -> None:
    write("stage_args: [{stage_id: 0}, {stage_id: 1, engine_input_source: [0]}]", "base.yaml")
    deploy = load_deploy(write("base_config: base.yaml\nstages: [{stage_id: 1, host: h}]"))
    assert [str(wire.name) for wire in deploy.wires] == ["0->1"]
    assert deploy.stage(1).host == "h"


@pytest.mark.parametrize("text", ["base_config: null\n", ""])
def test_no_base(write: Any, text: str) -> None:
    assert list(load_deploy(write(f"{text}stages: [{{stage_id: 0}}]")).stages) == ["0"]


def test_an_overlay_may_clear_what_its_base_says(write: Any) -> None:
    write(BASE, "base.yaml")
    path = write("base_config: base.yaml\nedges:\nstages:\n- {stage_id: 0, output_connectors: }")
    assert load_deploy(path).wires == ()


def test_null_sections_leave_the_base_alone(write: Any) -> None:
    write(BASE, "base.yaml")
    path = write("base_config: base.yaml\nconnectors:\nstages:\nplatforms:\n")
    assert list(load_deploy(path, platform="npu").stages) == ["0", "1"]


def test_where_each_value_was_written(overlay: Path) -> None:
    deploy = load_deploy(overlay, platform="npu")
    base = str(overlay.parent / "base.yaml")

    def said(*place: str | int) -> tuple[str, str, int | None, str]:
        origin = deploy.origin(*place)
        return origin.kind, origin.source, origin.line, origin.path

    assert said("async_chunk") == ("base", base, 1, "async_chunk")
    assert said("stages", 2, "stage_id") == ("file", str(overlay), 6, "stages[0].stage_id")
    assert said("stages", 0, "host") == (
        "platform",
        str(overlay),
        10,
        "platforms.npu.stages[0].host",
    )
    (wire,) = deploy.wires
    kinds = {key: wire.sender.origin(key).kind for key in (*wire.sender.knobs, "inline_limit")}
    assert kinds == {
        "codec_chunk_frames": "file",
        "codec_left_context_frames": "file",
        "inline_limit": "default",
    }
    assert wire.sender.origin("memory_pool_size").kind == "base"
    with pytest.raises(ValueError, match=r"does not say 'stages.0.nothing'"):
        deploy.origin("stages", 0, "nothing")


# Platforms


def test_without_a_platform_its_section_changes_nothing(overlay: Path) -> None:
    deploy = load_deploy(overlay)
    assert [plan.num_replicas for plan in deploy.stages.values()] == [1, 1, 1]


def test_a_platform_lies_over_the_file_and_its_bases(overlay: Path) -> None:
    deploy = load_deploy(overlay, platform="npu")
    assert [plan.num_replicas for plan in deploy.stages.values()] == [1, 3, 1]
    assert deploy.stage(1).others == {"devices": "7"}
    assert deploy.stage(0).host == "npu-1"


def test_the_environment_names_a_platform(overlay: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("OMNI_ASYNC_PLATFORM", "npu")
    assert load_deploy(overlay).stage(1).num_replicas == 3
    assert load_deploy(overlay, platform="cuda").stage(1).num_replicas == 1  # the call wins


def test_a_platform_may_change_connectors_and_nested_keys() -> None:
    source = {
        **three_stages(tensor_parallel_size=2, output_connectors={"to_stage_1": "c"}),
        "connectors": {"c": {"name": "shm", "extra": {"inline_limit": 1}}},
        "platforms": {
            "cuda": {
                "connectors": {"c": {"extra": {"inline_limit": 2}}},
                "stages": [{"stage_id": 0, "engine_args": {"tensor_parallel_size": 4}}],
            }
        },
    }
    deploy = load_deploy(source, platform="cuda")
    assert deploy.wires[0].sender.options == {"inline_limit": 2}
    assert deploy.stage(0).tensor_parallel_size == 4


def test_a_misspelt_platform_is_told_with_the_rest(overlay: Path) -> None:
    overlay.write_text(OVERLAY + "async_chunk: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_deploy(overlay, platform="npx")
    assert {m.path for m in caught.value.mistakes} == {"platforms", "async_chunk"}
    assert "platform 'npx' is not known; did you mean 'npu'?" in str(caught.value)


def test_a_platform_without_a_section_changes_nothing(overlay: Path) -> None:
    assert load_deploy(overlay, platform="xpu") == load_deploy(overlay)
    assert load_deploy(three_stages(), platform="npx") == load_deploy(three_stages())


@pytest.mark.parametrize("platform", [5, ["npu"]])
def test_a_platform_is_named_by_a_text(platform: Any) -> None:
    with pytest.raises(ConfigError, match="named by a text"):
        load_deploy(three_stages(), platform=platform)


def test_a_platform_merges_a_stages_environment(overlay: Path) -> None:
    source = {
        **three_stages(env={"A": "1", "B": "2"}),
        "platforms": {"npu": {"stages": [{"stage_id": 0, "env": {"B": "3"}}]}},
    }
    assert load_deploy(source, platform="npu").stage(0).others["env"] == {"A": "1", "B": "3"}


@pytest.mark.parametrize(
    ("platforms", "path", "text"),
    [
        ({"npu": 3}, "platforms.npu", "has to be a mapping"),
        ([1], "platforms", "has to be a mapping"),
        ({"npu": {"stages": {}}}, "platforms.npu.stages", "has to be a list"),
        ({"npu": {"stages": [3]}}, "platforms.npu.stages[0]", "has to"),
        ({"npu": {"stages": [{"host": "a"}]}}, "platforms.npu.stages[0]", "say its 'stage_id'"),
        ({"npu": {"stages": [{"stage_id": 9}]}}, "platforms.npu.stages[0]", "no stage '9'"),
        ({"npu": {"stagse": []}}, "platforms.npu.stagse", "did you mean 'stages'"),
        (
            {"npu": {"stages": [{"stage_id": 0, "num_replica": 2}]}},
            "platforms.npu.stages[0].num_replica",
            "did you mean 'num_replicas'",
        ),
    ],
)
def test_every_platform_is_looked_at(platforms: Any, path: str, text: str) -> None:
    assert text in mistakes({**three_stages(), "platforms": platforms})[path]


# Mistakes of bases


def test_a_mistake_of_a_base_names_the_base(overlay: Path, write: Any) -> None:
    base = write(BASE.replace("async_chunk: false", "async_chunk: 'no'"), "base.yaml")
    with pytest.raises(ConfigError) as caught:
        load_deploy(overlay)
    (mistake,) = caught.value.mistakes
    assert (mistake.path, mistake.line, mistake.file) == ("async_chunk", 1, str(base))
    assert f"async_chunk ({base}, line 1): has to be true or false" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stages: [}", r"base.yaml, line 1\): is not YAML"),
        ("", r"line 1\): .*base.yaml: is empty"),
        ("- 1", r"line 1\): .*base.yaml has to be a mapping"),
        ("base_config: deploy.yaml", r"is a base of itself"),
        ("base_config: base.yaml", r"is a base of itself"),
    ],
)
def test_a_base_that_cannot_be_used(write: Any, text: str, reason: str) -> None:
    write(text, "base.yaml")
    with pytest.raises(ConfigError, match=reason):
        load_deploy(write("base_config: base.yaml\nstages: [{stage_id: 0}]"))


@pytest.mark.parametrize("value", [3, "", ["a"], True])
def test_a_base_is_named_by_a_path(value: Any) -> None:
    found = mistakes({**three_stages(), "base_config": value})
    assert "has to be the path of a file" in found["base_config"]


def test_a_missing_base_is_told_beside_the_other_mistakes(write: Any) -> None:
    path = write("base_config: none.yaml\nasync_chunk: 3\nstages: [{stage_id: 0}]\n")
    found = mistakes(path)
    assert "none.yaml: there is no such file" in found["base_config"]
    assert "async_chunk" in found


def test_a_stage_listed_twice_in_the_overlay_is_still_told(write: Any) -> None:
    write(BASE, "base.yaml")
    path = write("base_config: base.yaml\nstages: [{stage_id: 1}, {stage_id: 1}]")
    assert "listed twice" in mistakes(path)["stages[1].stage_id"]


# The order of merging, against the plainest way to say it

SCALARS = st.integers(0, 3)
EXTRAS = st.dictionaries(st.sampled_from(["knob_a", "knob_b"]), SCALARS | st.just({"x": 1}))


def _id_of(stage: dict[str, Any]) -> int:
    id: int = stage["stage_id"]
    return id


LAYERS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "connectors": st.dictionaries(
                st.sampled_from(["c", "d"]),
                st.fixed_dictionaries({"name": st.just("memory"), "extra": EXTRAS}),
            ),
            "stages": st.lists(
                st.fixed_dictionaries(
                    {"stage_id": st.integers(0, 2)},
                    optional={"a": SCALARS, "b": SCALARS, "engine_extras": EXTRAS},
                ),
                unique_by=_id_of,
            ),
            "session_mode": SCALARS,
        },
    ),
    min_size=2,
    max_size=4,
)


def deep(lower: Any, upper: Any) -> Any:
    if not isinstance(lower, dict) or not isinstance(upper, dict):
        return upper
    return {
        key: deep(lower[key], upper[key])
        if key in lower and key in upper
        else upper.get(key, lower.get(key))
        for key in {**lower, **upper}
    }


@given(LAYERS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_later_files_win_key_by_key(tmp_path: Path, layers: list[dict[str, Any]]) -> None:
    layers = [{"stages": [{"stage_id": 0}]}, *layers]
    for i, layer in enumerate(layers):
        below = {"base_config": f"{i - 1}.yaml"} if i else {}
        (tmp_path / f"{i}.yaml").write_text(yaml.safe_dump({**layer, **below}))
    deploy = load_deploy(tmp_path / f"{len(layers) - 1}.yaml")

    stages: dict[str, dict[str, Any]] = {}
    connectors: dict[str, Any] = {}
    mode = None
    for layer in layers:
        connectors = deep(connectors, layer.get("connectors", {}))
        mode = layer.get("session_mode", mode)
        for stage in layer.get("stages", []):
            known = stages.get(str(stage["stage_id"]), {})
            extras = deep(known.get("engine_extras", {}), stage.get("engine_extras", {}))
            merged = {**known, **stage, **({"engine_extras": extras} if extras else {})}
            stages[str(stage["stage_id"])] = merged
    assert {alias: dict(c.knobs) for alias, c in deploy.connectors.items()} == {
        alias: connector["extra"] for alias, connector in connectors.items()
    }
    for id, plan in deploy.stages.items():
        expected = {k: v for k, v in stages[id].items() if k != "stage_id"}
        assert {k: v for k, v in plan.others.items() if v != {}} == {
            k: v for k, v in expected.items() if v != {}
        }
    assert (deploy.model.model_extra or {}).get("session_mode") == mode
