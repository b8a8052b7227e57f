"""Every mistake that people make in a file is told with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_async import ConfigError
from omni_async.deploy import Deploy, load_deploy
from tests.deploy.files import mistakes, three_stages

# What is wrong with a file as a whole


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_deploy(tmp_path / "none.yaml")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        load_deploy(str(tmp_path))


@pytest.mark.parametrize("text", ["", "  \n", "# nothing\n"])
def test_an_empty_file(write: Any, text: str) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        load_deploy(write(text))


def test_no_text(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_deploy(path)


def test_no_yaml_tells_the_line(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"\(line 2\): is not YAML") as caught:
        load_deploy(write("stages:\n  - {stage_id: 0]"))
    assert caught.value.mistakes[0].line == 2


def test_no_json_tells_the_line(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"\(line 2\): is not JSON"):
        load_deploy(write('{"stages":\n[}', "deploy.json"))


@pytest.mark.parametrize("source", [3, None, [1]])
def test_neither_a_path_nor_a_mapping(source: Any) -> None:
    with pytest.raises(ConfigError, match="a path or a mapping"):
        load_deploy(source)


@pytest.mark.parametrize("text", ["[]", "3", "just words"])
def test_not_a_mapping(write: Any, text: str) -> None:
    assert mistakes(write(text)) == {"": "the file has to be a mapping with 'stages' in it"}


def test_no_object_is_ever_built_from_a_tag(write: Any) -> None:
    with pytest.raises(ConfigError, match="is not YAML"):
        load_deploy(write("stages: !!python/object/apply:os.system ['true']"))


def test_what_looks_like_a_date_and_is_none_is_named(write: Any) -> None:
    found = mistakes(write("stages:\n- {stage_id: 0, since: 2001-99-99}\n2001-77-77: 1\n"))
    assert "month must be in 1..12" in found["stages[0].since"]
    assert "quote it" in found[""]


@pytest.mark.parametrize("name", ["deploy.yaml", "deploy.json"])
def test_endless_nesting_is_refused(write: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=r"deep|depth"):
        load_deploy(write("[" * 100_000, name))


def test_a_mapping_as_key_is_refused(write: Any) -> None:
    found = mistakes(write("stages: [{stage_id: 0}]\n? [1, 2]\n: 3\n"))
    assert "a key has to be a word or a number" in found[""]


def test_aliases_that_explode_are_refused(write: Any) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="too large"):
        load_deploy(write("\n".join(lines)))


def test_an_alias_that_holds_itself_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match="holds itself"):
        load_deploy(write("a: &a [*a]"))


# What is wrong at one place of it


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({"stages": []}, "stages", "must not be empty"),
        ({"stages": {"a": 1}}, "stages", "has to be a list"),
        ({"stages": None}, "stages", "has to be a list"),
        ({"connectors": 3}, "connectors", "has to be a mapping"),
        ({"connectors": {"c": "shm"}}, "connectors.c", "has to be a mapping, not 'shm'"),
        ({"connectors": {"c": {"extra": {}}}}, "connectors.c.name", "is missing"),
        ({"connectors": {"c": {"name": 3}}}, "connectors.c.name", "has to be text, not 3"),
        ({"connectors": {"c": {"name": ""}}}, "connectors.c.name", "must not be empty"),
        (
            {"connectors": {"c": {"name": "shm", "extras": {}}}},
            "connectors.c.extras",
            "did you mean 'extra'?",
        ),
        (
            {"connectors": {"c": {"name": "SharedMemoryConector"}}},
            "connectors.c.name",
            "did you mean 'SharedMemoryConnector'?",
        ),
        (
            {"connectors": {"c": {"name": "shm", "extra": {"role": "sender"}}}},
            "connectors.c.extra.role",
            "follows from the wiring",
        ),
        (
            {"connectors": {"c": {"name": "shm", "extra": {"memory_pool_sise": 1}}}},
            "connectors.c.extra.memory_pool_sise",
            "did you mean 'memory_pool_size'?",
        ),
        (
            {"connectors": {"c": {"name": "shm", "extra": {"memory_pool_size": "1 GB"}}}},
            "connectors.c.extra.memory_pool_size",
            "has to be a whole number above 0, not '1 GB'",
        ),
        ({"async_chunk": "yes"}, "async_chunk", "has to be true or false, not 'yes'"),
        ({"edges": [{"from": 0}]}, "edges[0].to", "is missing"),
        ({"edges": [{"from": 0, "to": 9}]}, "edges[0]", "there is no stage '9'"),
        ({"edges": [{"from": 0, "to": 0}]}, "edges[0]", "cannot send to itself"),
        ({"edges": [{"from": 0, "to": True}]}, "edges[0].to", "a whole number or a word"),
        (
            {"edges": [{"from": 0, "to": 1, "max_inflight": 0}]},
            "edges[0].max_inflight",
            "has to be at least 1, not 0",
        ),
        ({"edges": [{"from": 0, "to": 1}] * 2}, "edges[1]", "0->1 is listed twice"),
        ({"conectors": {}}, "conectors", "did you mean 'connectors'?"),
        ({"runtime": {"edges": [1]}}, "runtime.edges[0]", "has to be a mapping"),
    ],
)
def test_a_mistake_is_told_with_its_path(change: dict[str, Any], path: str, text: str) -> None:
    found = mistakes({**three_stages(), **change})
    assert text in found[path], found


@pytest.mark.parametrize(
    ("stage", "path", "text"),
    [
        ({"stage_id": -1}, "stages[0].stage_id", "0 or more"),
        ({"stage_id": 1.5}, "stages[0].stage_id", "a whole number or a word"),
        ({"stage_id": 1}, "stages[1].stage_id", "listed twice, first as stages[0]"),
        ({"stage_id": "1"}, "stages[1].stage_id", "listed twice"),
        (
            {"input_conectors": {}},
            "stages[0].input_conectors",
            "did you mean 'input_connectors'?",
        ),
        (
            {"output_connectors": {"to_stage_1": "fats"}},
            "stages[0].output_connectors.to_stage_1",
            "no connector is called 'fats'; did you mean 'fast'?",
        ),
        (
            {"output_connectors": {"from_stage_1": "fast"}},
            "stages[0].output_connectors.from_stage_1",
            "'to_stage_<stage_id>'",
        ),
        (
            {"input_connectors": {"from_stage_7": "fast"}},
            "stages[0].input_connectors.from_stage_7",
            "there is no stage '7'",
        ),
        (
            {"input_connectors": {"from_stage_2": {"name": "nix"}}},
            "stages[0].input_connectors.from_stage_2.name",
            "unknown connector 'nix'",
        ),
        (
            {"input_connectors": {"from_stage_2": None}},
            "stages[0].input_connectors.from_stage_2",
            "has to be text, not None",
        ),
        (
            {"input_connectors": {"from_stage_2": ["fast"]}},
            "stages[0].input_connectors.from_stage_2",
            "has to be a mapping",
        ),
    ],
)
def test_a_mistake_of_a_stage_is_told_with_its_path(
    stage: dict[str, Any], path: str, text: str
) -> None:
    found = mistakes({**three_stages(**stage), "connectors": {"fast": {"name": "shm"}}})
    assert text in found[path], found


def test_both_ends_need_the_same_connector() -> None:
    source = three_stages(output_connectors={"to_stage_1": {"name": "shm"}})
    source["stages"][1]["input_connectors"] = {"from_stage_0": {"name": "NixlConnector"}}
    found = mistakes(source)
    assert "both ends need the same connector" in found["stages[1].input_connectors.from_stage_0"]


def test_one_endpoint_has_one_set_of_options() -> None:
    small, large = (
        {"name": "shm", "extra": {"memory_pool_size": size}} for size in (1 << 20, 1 << 21)
    )
    found = mistakes(three_stages(output_connectors={"to_stage_1": small, "to_stage_2": large}))
    assert "with different options" in found["stages[0]"]


def test_doubled_keys_are_found_at_any_depth(write: Any) -> None:
    text = "stages:\n- stage_id: 0\n  stage_id: 1\n  env: {A: 1, A: 2}\nasync_chunk: true\nasync_chunk: true\n"
    found = mistakes(write(text))
    assert set(found) == {"stages[0].stage_id", "stages[0].env.A", "async_chunk"}
    assert "first in line 2" in found["stages[0].stage_id"]


def test_doubled_keys_of_json_too(write: Any) -> None:
    found = mistakes(write('{"stages": [{"stage_id": 0, "stage_id": 1}]}', "deploy.json"))
    assert set(found) == {"stages[0].stage_id"}


def test_all_mistakes_of_a_file_come_at_once_and_in_its_order(write: Any) -> None:
    path = write(
        "async_chunk: maybe\n"
        "connectors:\n"
        "  a: {name: SharedMemoryConnectr}\n"
        "  b: {name: shm, extra: {role: sender}}\n"
        "  c: {nam: shm}\n"
        "stages:\n"
        "- stage_id: 0\n"
        "  output_connectors: {to_stage_1: d, to_1: a}\n"
        "- stage_id: 0\n"
        "- stage_id: x\n"
        "  input_connectors: {from_stage_0: 3.5}\n"
        "edges:\n"
        "- {from: 0, to: 0}\n"
    )
    with pytest.raises(ConfigError, match="has 10 mistakes") as caught:
        load_deploy(path)
    assert [(m.line, m.path) for m in caught.value.mistakes] == [
        (1, "async_chunk"),
        (3, "connectors.a.name"),
        (4, "connectors.b.extra.role"),
        (5, "connectors.c.nam"),
        (8, "stages[0].output_connectors.to_stage_1"),
        (8, "stages[0].output_connectors.to_1"),
        (8, "stages[0].output_connectors.to_stage_1"),
        (9, "stages[1].stage_id"),
        (11, "stages[2].input_connectors.from_stage_0"),
        (13, "edges[0]"),
    ]


def test_a_stage_that_cannot_be_read_is_not_also_called_missing() -> None:
    source = {"stages": [{"stage_id": 0}, {"stage_id": 1.5}], "edges": [{"from": 0, "to": 1}]}
    assert set(mistakes(source)) == {"stages[1].stage_id"}


def test_unknown_stages_are_named(write: Any) -> None:
    deploy: Deploy = load_deploy(three_stages())
    with pytest.raises(ValueError, match=r"has no stage 'x'"):
        deploy.stage("x")
