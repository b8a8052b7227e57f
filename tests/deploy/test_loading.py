"""Files as people write them, and what follows from them."""

from __future__ import annotations

import json
from typing import Any

import yaml

from omni_async.cli.demo import default_deploy
from omni_async.deploy import load_deploy
from tests.deploy.files import RIGHT, three_stages

# What follows from a right file


def test_every_place_of_a_file_is_read(write: Any) -> None:
    deploy = load_deploy(write(RIGHT))

    assert list(deploy.stages) == ["0", "1", "2"]
    assert {str(wire.name) for wire in deploy.wires} == {"0->1", "1->2"}
    first = next(wire for wire in deploy.wires if wire.name == ("0", "1"))
    assert first.sender.spec.name == "SharedMemoryConnector"
    assert first.sender.spec.extra == {"memory_pool_size": 1048576}
    assert first.sender.knobs == {"codec_chunk_frames": 25}
    assert first.sender.alias == "fast"
    assert first.receiver == first.sender
    second = next(wire for wire in deploy.wires if wire.name == ("1", "2"))
    assert (second.window_size, second.max_inflight) == (4, 2)


def test_an_edge_that_names_nothing_gets_shared_memory() -> None:
    deploy = load_deploy({**three_stages(), "edges": [{"from": 0, "to": 1}]})
    (wire,) = deploy.wires
    assert wire.sender.spec.name == wire.receiver.spec.name == "SharedMemoryConnector"
    assert wire.sender.alias is None


def test_one_end_speaks_for_both() -> None:
    inline = {"name": "SharedMemoryConnector", "extra": {"buffer_ttl_seconds": 7.0}}
    (wire,) = load_deploy(three_stages(output_connectors={"to_stage_2": inline})).wires
    assert wire.name == ("0", "2")
    assert wire.receiver == wire.sender
    assert wire.sender.options == {"buffer_ttl_seconds": 7.0}


def test_roles_follow_from_the_wiring(write: Any) -> None:
    deploy = load_deploy(write(RIGHT))
    middle = deploy.stage(1)
    assert [wire.name.from_stage for wire in middle.inputs] == ["0"]
    assert [wire.name.to_stage for wire in middle.outputs] == ["2"]


def test_a_stages_own_async_chunk_wins(write: Any) -> None:
    deploy = load_deploy(write(RIGHT))
    assert [plan.async_chunk for plan in deploy.stages.values()] == [False, True, False]
    assert load_deploy(three_stages()).stage(0).async_chunk  # as the serving engine has it


def test_keys_of_the_engine_are_kept_and_left_alone(write: Any) -> None:
    deploy = load_deploy(write(RIGHT))
    assert deploy.stage(0).others == {"devices": "0", "gpu_memory_utilization": 0.9}
    assert deploy.model.model_extra == {"session_mode": "turn"}
    assert deploy.model.runtime == {"anything": 1}


def test_json_says_the_same(write: Any) -> None:
    from_yaml = load_deploy(write(RIGHT))
    from_json = load_deploy(write(json.dumps(yaml.safe_load(RIGHT), indent="\t"), "deploy.json"))
    assert from_json.wires == from_yaml.wires
    assert from_json.stages == from_yaml.stages


def test_fan_in_fan_out_and_feedback_are_fine() -> None:
    pairs = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)]
    deploy = load_deploy(
        {
            "stages": [{"stage_id": i} for i in range(4)],
            "edges": [{"from": a, "to": b} for a, b in pairs],
        }
    )
    assert [tuple(wire.name) for wire in deploy.wires] == [(str(a), str(b)) for a, b in pairs]


def test_stages_may_have_names() -> None:
    deploy = load_deploy(
        {
            "stages": [
                {"stage_id": "talker", "output_connectors": {"to_stage_code2wav": "x"}},
                {"stage_id": "code2wav"},
            ],
            "connectors": {"x": {"name": "shm"}},
        }
    )
    (wire,) = deploy.wires
    assert wire.name == ("talker", "code2wav")
    assert wire.sender.name == "SharedMemoryConnector"


def test_options_of_a_backend_that_is_not_here_are_kept_for_it() -> None:
    deploy = load_deploy(
        three_stages(
            output_connectors={
                "to_stage_1": {"name": "MooncakeTransferEngineConnector", "extra": {"zmq_port": 1}}
            }
        )
    )
    assert deploy.wires[0].sender.spec.extra == {"zmq_port": 1}


def test_an_empty_value_is_an_empty_mapping(write: Any) -> None:
    deploy = load_deploy(
        write("connectors:\nedges:\nstages:\n- {stage_id: 0, input_connectors: }\n")
    )
    assert deploy.wires == ()


def test_merged_and_aliased_parts_are_read_once_each(write: Any) -> None:
    deploy = load_deploy(
        write(
            "base: &base {devices: '0', out: 1}\n"
            "stages:\n"
            "- &first {<<: *base, stage_id: 0, out: 2}\n"
            "- {<<: *first, stage_id: 1}\n"
        )
    )
    assert deploy.stage(0).others == {"devices": "0", "out": 2}
    assert deploy.stage(1).others == {"devices": "0", "out": 2}


def test_the_shipped_file_loads() -> None:
    deploy = load_deploy(default_deploy())
    assert [str(wire.name) for wire in deploy.wires] == ["0->1", "1->2"]


def test_a_later_change_of_the_callers_mapping_changes_nothing() -> None:
    source = three_stages(devices=["0"])
    deploy = load_deploy(source)
    source["stages"][0]["devices"].append("1")
    assert deploy.stage(0).others == {"devices": ["0"]}
