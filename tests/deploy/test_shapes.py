"""Older shapes of a file mean what they meant."""

from __future__ import annotations

from typing import Any

import pytest

from omni_async.deploy import load_deploy
from tests.deploy.files import mistakes, three_stages

SHM = {"name": "SharedMemoryConnector", "extra": {"codec_chunk_frames": 25}}


def test_stage_args_and_runtime(write: Any) -> None:
    path = write(
        "stage_args:\n"
        "- stage_id: 0\n"
        "  runtime: {process: true, devices: '0,1', num_replicas: 2}\n"
        "  engine_args: {model: m, tensor_parallel_size: 2}\n"
        "  output_connectors: {to_stage_1: fast}\n"
        "- {stage_id: 1, engine_input_source: [0]}\n"
        "- {stage_id: 2, engine_input_source: 1}\n"
        "runtime:\n"
        "  enabled: true\n"
        "  connectors: {fast: {name: SharedMemoryConnector, extra: {memory_pool_size: 4096}}}\n"
        "  edges: [{from: 0, to: 1, window_size: 3}]\n"
    )
    deploy = load_deploy(path)
    assert {str(wire.name): wire.sender.alias for wire in deploy.wires} == {
        "0->1": "fast",
        "1->2": None,
    }
    assert deploy.wires[0].window_size == 3
    first = deploy.stage(0)
    assert (first.num_replicas, first.tensor_parallel_size) == (2, 2)
    assert first.others["devices"] == "0,1"
    assert first.others["engine_args"] == {"model": "m", "tensor_parallel_size": 2}
    assert deploy.model.runtime == {"enabled": True}
    assert deploy.origin("connectors", "fast").path == "runtime.connectors.fast"
    assert deploy.origin("stages", 0, "num_replicas").path == "stage_args[0].runtime.num_replicas"


def test_connectors_as_a_list() -> None:
    deploy = load_deploy(
        {
            **three_stages(output_connectors={"to_stage_2": {"name": "shm"}}),
            "connectors": [
                {"from_stage": 0, "to_stage": 1, "spec": SHM},
                {"from_stage": "1", "to_stage": 2, "spec": {"name": "MemoryConnector"}},
            ],
        }
    )
    assert {str(wire.name): (wire.sender.name, wire.receiver.name) for wire in deploy.wires} == {
        "0->2": ("SharedMemoryConnector", "SharedMemoryConnector"),
        "0->1": ("SharedMemoryConnector", "SharedMemoryConnector"),
        "1->2": ("MemoryConnector", "MemoryConnector"),
    }
    assert deploy.stage(1).inputs[0].receiver.knobs == {"codec_chunk_frames": 25}


@pytest.mark.parametrize(
    ("item", "path", "text"),
    [
        ({"from_stage": 0, "to_stage": 1}, "connectors[0]", "'from_stage', 'to_stage' and 'spec'"),
        (3, "connectors[0]", "'from_stage', 'to_stage' and 'spec'"),
        (
            {"from_stage": 0, "to_stage": 1, "spec": SHM, "window": 1},
            "connectors[0]",
            "not 'window'",
        ),
        ({"from_stage": 0, "to_stage": 7, "spec": SHM}, "connectors[0].to_stage", "no stage '7'"),
        ({"from_stage": 8, "to_stage": 1, "spec": SHM}, "connectors[0].from_stage", "stage '8'"),
        (
            {"from_stage": 0, "to_stage": 1, "spec": {"name": "sm"}},
            "connectors[0].spec.name",
            "unknown connector 'sm'",
        ),
    ],
)
def test_a_wrong_item_of_the_list(item: Any, path: str, text: str) -> None:
    assert text in mistakes({**three_stages(), "connectors": [item]})[path]


def test_a_list_of_connectors_beside_a_stage_without_a_name() -> None:
    source = {
        "stages": [{"stage_id": 0}, {"stage_id": 1}, {"devices": "0"}, 3],
        "connectors": [{"from_stage": 0, "to_stage": 1, "spec": SHM}],
    }
    assert set(mistakes(source)) == {"stages[2].stage_id", "stages[3]"}


@pytest.mark.parametrize(
    ("stage", "tensor_parallel_size"),
    [
        ({"parallel_config": {"tensor_parallel_size": 4}}, 4),
        ({"parallel_config": {"tensor_parallel_size": 4}, "tensor_parallel_size": 2}, 2),
        ({"engine_args": {"tensor_parallel_size": 4}, "tensor_parallel_size": 2}, 4),
        ({"engine_args": None}, 1),
    ],
)
def test_where_a_stage_says_its_ranks(stage: dict[str, Any], tensor_parallel_size: int) -> None:
    assert load_deploy(three_stages(**stage)).stage(0).tensor_parallel_size == tensor_parallel_size


def test_the_same_thing_in_two_shapes_is_refused() -> None:
    both = {**three_stages(), "stage_args": [{"stage_id": 5}]}
    assert "older spelling of 'stages'" in mistakes(both)["stage_args"]
    both = {
        **three_stages(),
        "edges": [{"from": 0, "to": 1}],
        "runtime": {"edges": [{"from": 0, "to": 1}], "connectors": {}},
    }
    assert set(mistakes(both)) == {"runtime.edges"}


def test_an_empty_old_section_beside_a_new_one_is_nothing() -> None:
    source = {**three_stages(), "edges": [{"from": 0, "to": 1}], "runtime": {"edges": None}}
    assert len(load_deploy(source).wires) == 1


def test_an_input_source_that_is_no_stage() -> None:
    found = mistakes(three_stages(engine_input_source=[9]))
    assert "there is no stage '9'" in found["stages[0].engine_input_source"]


@pytest.mark.parametrize(
    "source",
    [
        {"pipeline": "qwen3"},
        {"forced_aligner": {"model": "m"}},
        {"session_mode": "turn", "async_chunk": False},
    ],
)
def test_a_file_of_the_engine_alone_has_no_stages(source: dict[str, Any]) -> None:
    deploy = load_deploy(source)
    assert (deploy.stages, deploy.wires) == ({}, ())


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"anything": 1},
        {"pipeline": "p", "edges": [{"from": 0, "to": 1}]},
        {"pipeline": "p", "connectors": {"c": SHM}},
    ],
)
def test_whoever_speaks_of_edges_has_stages(source: dict[str, Any]) -> None:
    assert mistakes(source)["stages"] == "is missing"
