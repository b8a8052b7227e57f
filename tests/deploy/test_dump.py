"""What a deployment says of itself is a file that means the same."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_async.deploy import load_deploy
from omni_async.deploy.environment import escaped
from tests.deploy.files import RIGHT

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="$"),
    max_size=8,
) | (st.sampled_from(["a$$b", "$$X", "$$$$", "5 $", "%X%"]))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "memory_pool_size": st.integers(1, 1 << 40),
        "buffer_ttl_seconds": st.floats(0.5, 1e6) | st.integers(1, 9),
        "socket_dir": TEXT.filter(bool),
        "codec_chunk_frames": st.integers(),
        "some_knob": st.recursive(TEXT | st.none() | st.booleans(), st.lists, max_leaves=4),
    },
)
SHM = st.fixed_dictionaries({"name": st.sampled_from(["shm", "SharedMemoryConnector"])})
CONNECTOR = st.builds(lambda name, extra: {**name, "extra": extra}, SHM, OPTIONS)


@st.composite
def files(draw: Any) -> dict[str, Any]:
    """A right file: stages in a line with jumps, connectors by alias and in place."""
    count = draw(st.integers(1, 6))
    ids = draw(st.permutations(["0", "1", "2", "thinker", "a$b", "ø"]))[:count]
    host = draw(st.sampled_from([None, "node", "a.b", "x$y"]))
    aliases = draw(st.dictionaries(st.sampled_from(["fast", "b", "c"]), CONNECTOR, max_size=3))
    stages: list[dict[str, Any]] = []
    for id in ids:
        stage: dict[str, Any] = {"stage_id": escaped(id), "devices": draw(TEXT)}
        if host is not None and draw(st.booleans()):
            stage["host"] = escaped(host)
        if draw(st.booleans()):
            stage["async_chunk"] = draw(st.booleans())
        stages.append(stage)
    # One sending endpoint has one set of options: a stage names the same connector for all it sends.
    sends_over = [draw(st.sampled_from([None, *aliases]) | CONNECTOR) for _ in ids]
    edges = []
    for i, j in draw(st.lists(st.tuples(*[st.integers(0, count - 1)] * 2), unique=True)):
        if i != j and sends_over[i] is None:
            edges.append({"from": escaped(ids[i]), "to": escaped(ids[j])})
        elif i != j:
            stages[i].setdefault("output_connectors", {})[f"to_stage_{ids[j]}"] = sends_over[i]
    tree = {"stages": stages, "edges": edges, "dtype": draw(TEXT), "connectors": aliases}
    return copy.deepcopy(tree)


@given(files())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_load_dump_load_is_the_identity(tmp_path: Path, tree: dict[str, Any]) -> None:
    first = load_deploy(tree)
    dumped = first.dump()
    again = load_deploy(dumped)
    assert again == first
    assert again.dump() == dumped
    texts = {"d.yaml": yaml.safe_dump(dumped, sort_keys=False), "d.json": json.dumps(dumped)}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        assert load_deploy(path) == first


def test_a_dump_has_what_the_environment_said(monkeypatch: Any, write: Any) -> None:
    monkeypatch.setenv("POOL", "4096")
    monkeypatch.setenv("NAME", "a$b")
    deploy = load_deploy(
        write(
            "connectors: {c: {name: shm, extra: {memory_pool_size: $POOL, socket_dir: $NAME}}}\n"
            "stages:\n"
            "- {stage_id: 0, host: $NAME, output_connectors: {to_stage_1: c}}\n"
            "- {stage_id: 1, input_connectors: {from_stage_0: {name: shm, extra: {socket_dir: $NAME, k: $POOL}}}}\n"
        )
    )
    monkeypatch.delenv("POOL")
    monkeypatch.delenv("NAME")
    dumped = deploy.dump()
    assert dumped["connectors"]["c"] == {
        "name": "SharedMemoryConnector",
        "extra": {"memory_pool_size": 4096, "socket_dir": "a$$b"},
    }
    assert load_deploy(dumped) == deploy


def test_a_dump_of_a_platform_is_applied(write: Any) -> None:
    text = RIGHT.replace("{cuda: {stages: []}}", "{cuda: {stages: [{stage_id: 0, host: h}]}}")
    deploy = load_deploy(write(text), platform="cuda")
    dumped = deploy.dump()
    assert dumped["stages"][0]["host"] == "h"
    assert load_deploy(dumped) == load_deploy(dumped, platform="cuda") == deploy


def test_a_dump_is_the_callers_own(write: Any) -> None:
    deploy = load_deploy(write(RIGHT))
    deploy.dump()["stages"][0]["output_connectors"]["to_stage_1"] = "changed"
    assert deploy.dump()["stages"][0]["output_connectors"] == {"to_stage_1": "fast"}


NESTED = st.fixed_dictionaries(
    {},
    optional={
        "runtime": st.fixed_dictionaries(
            {},
            optional={
                "num_replicas": st.sampled_from([1, 2, "$N", "3"]),
                "devices": st.sampled_from(["0", "0,1"]),
            },
        ),
        "engine_args": st.fixed_dictionaries(
            {}, optional={"tensor_parallel_size": st.integers(1, 3), "model": st.just("m")}
        ),
        "parallel_config": st.fixed_dictionaries({"tensor_parallel_size": st.integers(1, 3)}),
        "num_replicas": st.integers(1, 3),
        "tensor_parallel_size": st.sampled_from([1, 2, "${N}"]),
        "host": st.sampled_from(["node", "$HOST"]),
        "env": st.dictionaries(st.sampled_from("AB"), st.sampled_from(["1", "$PATH"])),
    },
)
FAR = {
    "name": "MooncakeTransferEngineConnector",
    "extra": {"port_scheme": "strided", "zmq_port": "$PORT", "codec_chunk_frames": "$N"},
}
SECTIONS = st.dictionaries(
    st.sampled_from(["npu", "cuda"]),
    st.builds(
        lambda key, stages, extra: {
            key: [{"stage_id": i, **stage} for i, stage in enumerate(stages)],
            **extra,
        },
        st.sampled_from(["stages", "stage_args"]),
        st.lists(NESTED, max_size=2),
        st.sampled_from([{}, {"connectors": {"far": {"extra": {"zmq_port": 51000}}}}]),
    ),
)


@given(
    st.lists(NESTED, min_size=2, max_size=2),
    st.lists(NESTED, max_size=2),
    SECTIONS,
    st.sampled_from([None, "npu", "cuda"]),
    st.sampled_from(["alias", "list", "runtime"]),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_dump_of_all_that_files_are_made_of(
    tmp_path: Path,
    stages: list[dict[str, Any]],
    upper: list[dict[str, Any]],
    sections: dict[str, Any],
    platform: str | None,
    shape: str,
) -> None:
    """Bases, platforms, older shapes, nested keys and the environment: no longer there, and meant."""
    listed = [{"stage_id": i, **stage} for i, stage in enumerate(stages)]
    base: dict[str, Any] = {"stage_args" if shape == "runtime" else "stages": listed}
    if shape == "list":
        base["connectors"] = [{"from_stage": "0", "to_stage": "1", "spec": FAR}]
        sections = {name: {**section, "connectors": None} for name, section in sections.items()}
    else:
        listed[1]["input_connectors"] = {"from_stage_0": "far"}
        holder = base.setdefault("runtime", {}) if shape == "runtime" else base
        holder["connectors"] = {"far": FAR}
    overlay = {
        "base_config": "base.yaml",
        "stages": [{"stage_id": i, **stage} for i, stage in enumerate(upper)],
        "platforms": sections,
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base, sort_keys=False))
    path = tmp_path / "overlay.yaml"
    path.write_text(yaml.safe_dump(overlay, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"N": "2", "HOST": "node", "PORT": "50100"}.items():
            patch.setenv(name, value)
        deploy = load_deploy(path, platform=platform)
    dumped = deploy.dump()
    assert load_deploy(dumped) == load_deploy(dumped, platform=platform) == deploy
    assert load_deploy(json.loads(json.dumps(dumped))) == deploy
