"""The JSON Schema: valid itself, takes every right file, marks what is wrong at its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from omni_async import registry
from omni_async.backends.memory import MemoryBackend
from omni_async.backends.memory.config import MemoryOptions
from omni_async.deploy.models import OWN_KEYS, OWN_STAGE_KEYS
from omni_async.deploy.schema import json_schema
from tests.deploy.files import RIGHT

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def wrong(tree: Any) -> set[str]:
    """The places that are marked."""
    return {".".join(map(str, error.absolute_path)) for error in VALIDATOR.iter_errors(tree)}


def connector(name: str, **extra: Any) -> dict[str, Any]:
    return {"stages": [{"stage_id": 0}], "connectors": {"c": {"name": name, "extra": extra}}}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


def test_no_key_of_ours_is_forgotten() -> None:
    assert set(OWN_KEYS) <= set(SCHEMA["properties"])
    assert set(OWN_STAGE_KEYS) <= set(SCHEMA["$defs"]["stage"]["properties"])
    # Not registry.names(): other tests register doubles, whose options nobody describes.
    for name in ("shm", "memory", "mori", "nixl", *registry.planned_names()):
        options = SCHEMA["$defs"][registry.canonical(name)]["properties"]
        assert set(options) == set(registry.options_for(name).model_fields)
        assert all(rules["description"] for rules in options.values())


def test_right_files(peer_wheel: Path) -> None:
    paths = sorted((peer_wheel / "vllm_omni" / "deploy").glob("*.yaml"))
    assert len(paths) == 110
    for path in paths:
        assert wrong(yaml.safe_load(path.read_text())) == set(), path.name


def test_a_right_file_and_examples() -> None:
    assert wrong(yaml.safe_load(RIGHT)) == set()
    for path in (Path(__file__).parents[2] / "examples").rglob("*.yaml"):
        assert wrong(yaml.safe_load(path.read_text())) == set(), path.name


@pytest.mark.parametrize(
    "tree",
    [
        connector("shm"),
        connector("MooncakeConnector", segment=0),
        connector("mooncake", zmq_port="$PORT", memory_pool_size="${SIZE}", protocol="$HOW"),
        connector("mooncake", zmq_port="50051", device_name=None, my_own_knob=[1]),
        connector("nixl", backends="UCX", codec_chunk_frames=[25, 50]),
        connector("mori", backend_type="XGMI", memory_pool_device="cuda"),
        connector("yuanrong-te", rpc_port="auto"),
        {"stages": [{"stage_id": "talker", "devices": "0,1"}], "edges": None, "connectors": None},
        {"stages": [{"stage_id": 0, "async_chunk": None, "num_replicas": "$N", "anything": {}}]},
        {"stages": [{"stage_id": 1, "input_connectors": {"from_stage_0": {"name": "shm"}}}]},
        {"base_config": "other.yaml", "connectors": {"c": {"extra": {"zmq_port": 1}}}},
        {"stage_args": [{"stage_id": 0}], "runtime": {"edges": [{"from": 0, "to": 1}]}},
        {"stages": [], "runtime": {"connectors": {"c": {"name": "shm", "extra": None}}}},
        {
            "stages": [],
            "connectors": [{"from_stage": 0, "to_stage": "1", "spec": {"name": "shm"}}],
            "platforms": {"npu": {"stages": [{"stage_id": 0}]}, "xpu": None},
        },
        {"pipeline": "text_to_image"},
    ],
)
def test_what_is_allowed(tree: Any) -> None:
    assert wrong(tree) == set()


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ([], ""),
        ({"connectors": {}}, ""),
        (connector("shm", memory_pool_size="1 GB"), "connectors.c.extra.memory_pool_size"),
        (connector("SharedMemoryConnector", peer_timeout=0), "connectors.c.extra.peer_timeout"),
        (connector("mooncake", zmq_port=70000), "connectors.c.extra.zmq_port"),
        (connector("MooncakeConnector", localbuf=0), "connectors.c.extra.localbuf"),
        (connector("nixl", backends=3), "connectors.c.extra.backends"),
        (connector("mori", backend_type="ib"), "connectors.c.extra.backend_type"),
        (connector("shm", role="sender"), "connectors.c.extra.role"),
        (connector("smh"), "connectors.c.name"),
        ({"stages": [], "connectors": {"c": {"extra": {}}}}, "connectors.c"),
        ({"stages": [], "connectors": {"c": {"name": "shm", "extras": {}}}}, "connectors.c"),
        ({"stages": [], "connectors": [{"from_stage": 0}]}, "connectors.0"),
        ({"stages": [{"devices": "0"}]}, "stages.0"),
        ({"stages": [{"stage_id": -1}]}, "stages.0.stage_id"),
        ({"stages": [{"stage_id": 0, "num_replicas": 0}]}, "stages.0.num_replicas"),
        ({"stages": [{"stage_id": 0, "async_chunk": "false"}]}, "stages.0.async_chunk"),
        ({"stages": [{"stage_id": 0, "output_connectors": {"to_1": "c"}}]},
         "stages.0.output_connectors"),
        ({"stages": [{"stage_id": 0, "input_connectors": {"from_stage_1": {"extra": {}}}}]},
         "stages.0.input_connectors.from_stage_1"),
        ({"stages": [], "edges": [{"from": 0}]}, "edges.0"),
        ({"stages": [], "edges": [{"from": 0, "to": 1, "max_inflight": 0}]},
         "edges.0.max_inflight"),
        ({"stages": [], "runtime": {"edges": 3}}, "runtime.edges"),
    ],
)  # fmt: skip
def test_what_is_marked(tree: Any, place: str) -> None:
    assert wrong(tree) == {place}


class Inner(pydantic.BaseModel):
    depth: int = 1


class OwnOptions(MemoryOptions):
    """A package's options may hold a model, and say less of themselves."""

    inner: Inner = Inner()
    silent: int = 0
    needed: int = pydantic.Field()


class OwnBackend(MemoryBackend):
    name = "OwnConnector"
    alias = "own"
    options = OwnOptions


def test_a_package_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    registry.register_backend(OwnBackend())
    validator = jsonschema.Draft202012Validator(json_schema())
    assert validator.is_valid(connector("own", inner={"depth": 2}, silent=1))
    assert not validator.is_valid(connector("own", inner={"depth": "x"}))
    assert not validator.is_valid(connector("OwnConnector", silent="x"))
