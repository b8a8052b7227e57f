"""Every deploy file of the published vLLM-Omni 0.30.0 loads unchanged, and means what it means there.

``$OMNI_ASYNC_PEER_WHEEL`` names the unpacked wheel; the test session fetches it.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_async.deploy import Deploy, load_deploy
from omni_async.deploy.known_knobs import KNOBS

WHEEL = os.environ.get("OMNI_ASYNC_PEER_WHEEL")
FILES = sorted((Path(WHEEL) / "vllm_omni" / "deploy").glob("*.yaml")) if WHEEL else []

pytestmark = pytest.mark.skipif(
    WHEEL is None, reason="needs OMNI_ASYNC_PEER_WHEEL, the folder of the unpacked vllm-omni wheel"
)


def inherited(path: Path) -> dict[str, Any]:
    """The file over its base, in the fewest words: only what tells stages and edges."""
    tree: dict[str, Any] = yaml.safe_load(path.read_text())
    tree["platforms"] = {k: v for k, v in (tree.get("platforms") or {}).items() if v}
    if "base_config" not in tree:
        return tree
    base = inherited(path.parent / tree["base_config"])
    connectors = {**(base.get("connectors") or {})}
    for alias, connector in (tree.get("connectors") or {}).items():
        below = connectors.get(alias, {})
        extra = {**below.get("extra", {}), **connector.get("extra", {})}
        connectors[alias] = {**below, **connector, "extra": extra}
    stages = {stage["stage_id"]: stage for stage in base.get("stages", [])}
    for stage in tree.get("stages", []):
        stages[stage["stage_id"]] = {**stages.get(stage["stage_id"], {}), **stage}
    platforms = {**base["platforms"], **tree["platforms"]}
    both = {"connectors": connectors, "stages": list(stages.values()), "platforms": platforms}
    return {**base, **tree, **both}


def expected_edges(tree: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Each edge with the connectors that its ends name."""
    edges: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for edge in tree.get("edges", []):
        edges[str(edge["from"]), str(edge["to"])] = []
    for stage in tree.get("stages", []):
        here = str(stage["stage_id"])
        for end, named in stage.get("input_connectors", {}).items():
            other = end.removeprefix("from_stage_")
            edges.setdefault((other, here), []).append(tree["connectors"][named])
        for end, named in stage.get("output_connectors", {}).items():
            other = end.removeprefix("to_stage_")
            edges.setdefault((here, other), []).append(tree["connectors"][named])
    return edges


def loaded() -> dict[str, Deploy]:
    return {path.name: load_deploy(path) for path in FILES}


def test_there_are_as_many_as_were_published() -> None:
    assert len(FILES) == 110


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_edges_connectors_and_options(path: Path) -> None:
    tree = inherited(path)
    deploy = load_deploy(path)

    assert list(deploy.stages) == [str(stage["stage_id"]) for stage in tree.get("stages", [])]
    edges = expected_edges(tree)
    assert {tuple(wire.name) for wire in deploy.wires} == set(edges)
    for wire in deploy.wires:
        named = edges[wire.name.from_stage, wire.name.to_stage]
        for connector in named:
            for end in (wire.sender, wire.receiver):
                assert end.name == connector["name"]
                assert {**end.options, **end.knobs}.keys() == connector.get("extra", {}).keys()
                for key, value in connector.get("extra", {}).items():
                    assert {**end.options, **end.knobs}[key] == value
                assert not set(end.knobs) - set(KNOBS)
        if not named:
            assert wire.sender.name == wire.receiver.name == "SharedMemoryConnector"
    for stage in tree.get("stages", []):
        plan = deploy.stage(stage["stage_id"])
        assert plan.num_replicas == stage.get("num_replicas", 1)
        foreign = set(stage) - {"stage_id", "num_replicas", "tensor_parallel_size", "async_chunk"}
        foreign -= {"input_connectors", "output_connectors"}
        assert {key: plan.others[key] for key in foreign} == {key: stage[key] for key in foreign}


def test_what_all_of_them_have_together() -> None:
    deploys = loaded()
    assert sum(len(deploy.stages) for deploy in deploys.values()) == 210
    wires = [wire for deploy in deploys.values() for wire in deploy.wires]
    assert Counter(wire.sender.name for wire in wires) == {
        "SharedMemoryConnector": 74,
        "MoriTransferEngineConnector": 2,
        "NixlConnector": 2,
        "MooncakeTransferEngineConnector": 1,
    }
    assert sum(bool(deploy.connectors) for deploy in deploys.values()) == 73
    knobs = Counter(knob for wire in wires for knob in wire.receiver.knobs)
    assert (knobs["codec_chunk_frames"], knobs["connector_get_max_wait"]) == (59, 55)


@pytest.mark.parametrize("platform", ["cuda", "musa", "npu", "rocm", "xpu"])
def test_every_platform_of_every_file(platform: str) -> None:
    touched = []
    for path in FILES:
        plain, applied = load_deploy(path), load_deploy(path, platform=platform)
        assert [wire.name for wire in applied.wires] == [wire.name for wire in plain.wires]
        if applied != plain:
            touched.append(path)
    assert touched == [path for path in FILES if inherited(path)["platforms"].get(platform)]
    assert len(touched) == {"cuda": 6, "musa": 7, "npu": 23, "rocm": 9, "xpu": 13}[platform]


def test_each_one_written_out_means_the_same() -> None:
    for deploy in loaded().values():
        assert load_deploy(deploy.dump()) == deploy
