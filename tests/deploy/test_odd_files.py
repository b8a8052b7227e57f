"""Files nobody means to write, and that somebody will: refused in words, once, and quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_async import ConfigError
from omni_async.deploy import load_deploy
from tests.deploy.files import mistakes, three_stages

HUGE = 10**5000
SHM: dict[str, Any] = {"name": "shm"}


def told(source: Any, **options: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        load_deploy(source, **options)
    return [(mistake.path, mistake.text) for mistake in caught.value.mistakes]


# --- values that no key expects -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["!!bool maybe", "!!timestamp foo", "!!int ''", "!!float ''", "0b_", "2001-99-99"],
)
def test_a_scalar_that_does_not_fit_its_tag_is_told_once(write: Any, text: str) -> None:
    path = write(f"stages: [{{stage_id: 0}}]\nconnectors: {{c: {{name: {text}}}}}\n")
    (found,) = told(path)
    assert found[0] == "connectors.c.name"
    assert "cannot be read" in found[1]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"stages": [{"stage_id": HUGE}]}, "stages[0].stage_id"),
        ({"stages": [{"stage_id": 0, "num_replicas": -HUGE}]}, "stages[0].num_replicas"),
        ({"edges": [{"from": 0, "to": 1, "window_size": -HUGE}]}, "edges[0].window_size"),
        (
            {"connectors": {"c": {"name": "shm", "extra": {"memory_pool_size": -HUGE}}}},
            "connectors.c.extra.memory_pool_size",
        ),
    ],
)
def test_a_number_of_thousands_of_digits(change: dict[str, Any], place: str) -> None:
    source = {**three_stages(), **change}
    assert told(source) == [(place, "is a number with too many digits")]


def test_a_number_of_hundreds_of_digits_in_a_file(write: Any) -> None:
    path = write(f"stages: [{{stage_id: 0, num_replicas: 0x{'f' * 400}}}]\n")
    assert told(path) == [("stages[0].num_replicas", "is a number with too many digits")]


def test_a_key_of_thousands_of_digits(write: Any) -> None:
    assert told({**three_stages(), HUGE: 1}) == [("", "a key is a number with too many digits")]
    found = told(write(f"stages: [{{stage_id: 0}}]\n0x{'f' * 400}: 1\n"))
    assert "too many digits" in found[0][1]


def test_json_with_a_number_of_thousands_of_digits(write: Any) -> None:
    path = write('{"stages": [{"stage_id": 0}], "k": ' + "9" * 5000 + "}", "deploy.json")
    with pytest.raises(ConfigError, match="is not JSON"):
        load_deploy(path)


def test_digits_as_text_are_a_port_up_to_a_point() -> None:
    inline = {"name": "mooncake", "extra": {"zmq_port": "9" * 5000}}
    (found,) = told(three_stages(output_connectors={"to_stage_1": inline}))
    assert "has to be a port from 1 to 65535" in found[1]


def test_a_mapping_that_holds_itself() -> None:
    circle: dict[str, Any] = three_stages()
    circle["more"] = circle
    with pytest.raises(ConfigError, match="holds itself"):
        load_deploy(circle)


@pytest.mark.parametrize("key", [5, None, 1.5])
def test_a_key_that_is_no_text(key: Any) -> None:
    found = told({**three_stages(), "connectors": {key: SHM}})
    assert any("a key has to be text" in text for _, text in found)


def test_a_character_that_yaml_has_not(write: Any) -> None:
    path = write("stages:\n- stage_id: 0\n  a: \0\n")
    with pytest.raises(ConfigError) as caught:
        load_deploy(path)
    assert caught.value.mistakes[0].line == 3
    assert r"holds the character '\x00'" in str(caught.value)


@pytest.mark.parametrize("odd", [r"\ud83d\ude00", r"\/", "\x7f", "é"])
def test_json_keeps_its_lines_over_what_yaml_has_not(write: Any, odd: str) -> None:
    text = '{"k": "' + odd + '",\n"stages": [\n{"stage_id": 0},\n{"stage_id": 0}]}'
    with pytest.raises(ConfigError) as caught:
        load_deploy(write(text, "deploy.json"))
    assert [m.line for m in caught.value.mistakes] == [4]


# --- bases ----------------------------------------------------------------------------------------


def test_bases_that_no_path_leads_to(tmp_path: Path, write: Any) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for name in ("circle", "a\0b", "\ud800"):
        source = {**three_stages(), "base_config": str(tmp_path / name)}
        ((place, _),) = told(source)
        assert place == "base_config"


def test_what_a_base_may_hold_is_not_called_missing(write: Any) -> None:
    path = write(
        "base_config: none.yaml\n"
        "async_chunk: 3\n"
        "connectors: {fast: {extra: {memory_pool_size: 4096}}}\n"
        "stages: [{stage_id: 1, input_connectors: {from_stage_0: slow}}]\n"
        "platforms: {npu: {stages: [{stage_id: 0}]}}\n"
    )
    assert [place for place, _ in told(path)] == ["base_config", "async_chunk"]
    path.write_text("base_config: none.yaml\n")
    assert [place for place, _ in told(path)] == ["base_config"]


def test_bases_without_end(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i}.yaml").write_text(
            f"base_config: {i + 1}.yaml\nstages: [{{stage_id: 0}}]\n"
        )
    ((_, text),) = told(tmp_path / "0.yaml")
    assert text == "more than 20 bases stand on one another"


@pytest.mark.parametrize("value", [["a", "b"], {"a": 1}])
def test_what_stands_for_a_base_is_shown_as_it_was_written(value: Any) -> None:
    ((_, text),) = told({**three_stages(), "base_config": value})
    assert text.endswith(f"not {value!r}")


# --- older shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "place", "text"),
    [
        (
            [(0, 1, SHM), (0, 1, {"name": "nixl"})],
            "connectors[1]",
            "the edge 0->1 is listed twice",
        ),
        ([(0, 2, {"name": "nixl"})], "connectors[0].spec", "names a connector for this edge too"),
        ([([0], 1, SHM)], "connectors[0].from_stage", "has to be a stage's id, not [0]"),
        ([(True, 1, SHM)], "connectors[0].from_stage", "has to be a stage's id, not True"),
    ],
)
def test_a_list_of_connectors_is_read_to_its_end(items: Any, place: str, text: str) -> None:
    listed = [{"from_stage": a, "to_stage": b, "spec": spec} for a, b, spec in items]
    source = {**three_stages(output_connectors={"to_stage_2": SHM}), "connectors": listed}
    assert any(at == place and text in found for at, found in told(source))


@pytest.mark.parametrize("ends", [5, [1], "x"])
def test_wrong_ends_beside_a_list_are_told(ends: Any) -> None:
    listed = [{"from_stage": 0, "to_stage": 1, "spec": SHM}]
    source = {**three_stages(output_connectors=ends), "connectors": listed}
    assert "has to be a mapping" in mistakes(source)["stages[0].output_connectors"]


def test_a_list_over_a_base_with_the_stages(write: Any) -> None:
    listed = "connectors: [{from_stage: 0, to_stage: 1, spec: {name: shm, extra: {k: %d}}}]\n"
    write(listed % 1 + "stages: [{stage_id: 0}, {stage_id: 1}]\n", "base.yaml")
    (wire,) = load_deploy(write("base_config: base.yaml\n" + listed % 2)).wires
    assert wire.sender.knobs == {"k": 2}


def test_sections_of_platforms_in_older_shapes() -> None:
    source = {
        **three_stages(),
        "platforms": {
            "npu": {
                "stage_args": [{"stage_id": 0, "runtime": {"num_replicas": 3}}],
                "runtime": {"connectors": {"c": SHM}},
            }
        },
    }
    deploy = load_deploy(source, platform="npu")
    assert deploy.stage(0).num_replicas == 3
    assert list(deploy.connectors) == ["c"]
    source["platforms"]["npu"]["base_config"] = "x.yaml"
    assert "no base of its own" in mistakes(source)["platforms.npu.base_config"]


# --- slips of the pen -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "place", "meant"),
    [
        ({"stages": [{"stage_id": 0, "hsot": "a"}]}, "stages[0].hsot", "host"),
        ({"stages": [{"stage_di": 0}]}, "stages[0].stage_di", "stage_id"),
        ({"runtime": {"edgs": []}}, "runtime.edgs", "edges"),
        ({"runtime": {"connectrs": {}}}, "runtime.connectrs", "connectors"),
        ({"stage_arg": []}, "stage_arg", "stage_args"),
        ({"connectors": {"c": {"nme": "shm"}}}, "connectors.c.nme", "name"),
        ({"edges": [{"frm": 0, "to": 1}]}, "edges[0].frm", "from"),
    ],
)
def test_a_slip_is_one_mistake(change: dict[str, Any], place: str, meant: str) -> None:
    assert told({**three_stages(), **change}) == [(place, f"unknown key; did you mean {meant!r}?")]


def test_a_stage_without_an_id_beside_a_platform() -> None:
    source = {
        "stages": [{"stage_di": 0}, {"stage_id": 1}],
        "platforms": {"npu": {"stages": [{"stage_id": 0}, 5]}},
    }
    assert dict(told(source)) == {
        "stages[0].stage_di": "unknown key; did you mean 'stage_id'?",
        "platforms.npu.stages[0]": "there is no stage '0'; known: 1",
        "platforms.npu.stages[1]": "has to be a mapping, not 5",
    }


def test_a_doubled_key_that_an_alias_repeats_is_told_once(write: Any) -> None:
    path = write("a: &a {x: 1, x: 2}\nb: *a\nc: *a\nstages: [{stage_id: 0}]\n")
    assert [place for place, _ in told(path)] == ["a.x"]


# --- connectors and hosts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "connector", [{"name": "mooncake", "extra": {"zmq_port": 0}}, "wiree", {"name": "shmm"}]
)
def test_a_wrong_connector_is_not_judged_as_another(connector: Any) -> None:
    source = three_stages(host="a", output_connectors={"to_stage_1": connector})
    source["stages"][1]["host"] = "b"
    source["connectors"] = {"wire": SHM}
    assert len(told(source)) == 1


@pytest.mark.parametrize("key", ["host", "sender_host"])
def test_a_connectors_host_is_checked_like_a_stages(key: str) -> None:
    def inline(host: str) -> dict[str, Any]:
        return three_stages(
            output_connectors={"to_stage_1": {"name": "mooncake", "extra": {key: host}}}
        )

    ((_, text),) = told(inline("node:5"))
    assert "without a port" in text
    (wire,) = load_deploy(inline("[fd00::5]")).wires
    assert getattr(wire.sender.settings, key) == "fd00::5"


def test_the_same_ports_however_they_are_written() -> None:
    source = three_stages(
        output_connectors={"to_stage_1": {"name": "mooncake", "extra": {"peer": "vllm-omni"}}}
    )
    both = {"peer": "vllm-omni", "port_scheme": "strided"}
    source["stages"][1]["input_connectors"] = {"from_stage_0": {"name": "mooncake", "extra": both}}
    assert len(load_deploy(source).wires) == 1


@pytest.mark.parametrize("count", ["3", 3.0])
def test_counts_that_vllm_omni_takes(count: Any) -> None:
    assert load_deploy(three_stages(num_replicas=count)).stage(0).num_replicas == 3


@pytest.mark.parametrize(
    ("key", "value"), [("num_replicas", 1 << 17), ("tensor_parallel_size", 5000)]
)
def test_counts_beyond_every_machine(key: str, value: int) -> None:
    assert "has to be at most" in mistakes(three_stages(**{key: value}))[f"stages[0].{key}"]


# --- what was given to the call -------------------------------------------------------------------


def test_what_the_call_says_wins(write: Any) -> None:
    write("async_chunk: true\nstages: [{stage_id: 0}, {stage_id: 1}]\n", "base.yaml")
    path = write(
        "base_config: base.yaml\nasync_chunk: true\nplatforms: {npu: {async_chunk: true}}\n"
    )
    overrides = {"async_chunk": False, "stages": [{"stage_id": 1, "host": "h"}]}
    deploy = load_deploy(path, platform="npu", overrides=overrides)
    assert [plan.async_chunk for plan in deploy.stages.values()] == [False, False]
    assert deploy.stage(1).host == "h"
    assert deploy.origin("async_chunk").kind == "call"


def test_a_mistake_of_the_call_is_told_as_that() -> None:
    with pytest.raises(ConfigError) as caught:
        load_deploy(three_stages(), overrides={"async_chunk": "no"})
    (mistake,) = caught.value.mistakes
    assert (mistake.file, mistake.path) == ("the overrides", "async_chunk")
