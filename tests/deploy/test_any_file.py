"""Whatever a file holds, it is either right or refused with ConfigError; nothing else happens."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_async import ConfigError, load_deploy

KEYS = st.sampled_from(
    [
        *("connectors", "stages", "edges", "async_chunk", "runtime", "stage_id", "name", "extra"),
        *("input_connectors", "output_connectors", "from", "to", "window_size", "max_inflight"),
        *(
            "from_stage_0",
            "to_stage_1",
            "to_stage_",
            "a",
            "memory_pool_size",
            "role",
            "",
            "ø",
            0,
            1,
        ),
        *(None, True, 1.5),
    ]
)
LEAVES = st.sampled_from(
    [None, True, 0, 1, -1, 2.5, "", "0", "1", "a", "shm", "SharedMemoryConnector", "NixlConnector"]
)
TREES = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=20,
)
REFERENCES = st.dictionaries(
    st.sampled_from(["from_stage_0", "from_stage_1", "to_stage_0", "to_stage_2", "x"]),
    st.sampled_from(["a", "b", {"name": "shm"}, {"name": "nil"}, None]),
    max_size=2,
)
STAGES = st.lists(
    st.fixed_dictionaries(
        {"stage_id": st.sampled_from([0, 1, 2, "1", "x", None])},
        optional={
            "input_connectors": REFERENCES,
            "output_connectors": REFERENCES,
            "devices": TREES,
        },
    ),
    max_size=4,
)
NEARLY = st.fixed_dictionaries(
    {"stages": STAGES},
    optional={
        "connectors": st.just({"a": {"name": "shm"}}) | TREES,
        "edges": st.lists(
            st.fixed_dictionaries(
                {"from": st.sampled_from([0, 1, "2"]), "to": st.sampled_from([0, 1, "2"])}
            ),
            max_size=3,
        ),
        "async_chunk": LEAVES,
    },
)


def judged(source: Any) -> set[tuple[str, str]]:
    """The mistakes, none for a right file; then every edge of it joins two of its stages."""
    try:
        deploy = load_deploy(source)
    except ConfigError as error:
        return {(mistake.path, mistake.text) for mistake in error.mistakes}
    assert all(end in deploy.stages for wire in deploy.wires for end in wire.name)
    for plan in deploy.stages.values():
        assert all(wire.name.to_stage == plan.id for wire in plan.inputs)
        assert all(wire.name.from_stage == plan.id for wire in plan.outputs)
    assert len({wire.name for wire in deploy.wires}) == len(deploy.wires)
    return set()


@given(st.dictionaries(KEYS, TREES, max_size=4) | NEARLY)
@settings(max_examples=300, deadline=None)
def test_any_mapping(tree: dict[Any, Any]) -> None:
    judged(tree)


@given(NEARLY)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_is_judged_like_the_mapping_it_holds(tmp_path: Path, tree: dict[str, Any]) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    assert judged(path) == judged(tree)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    for name in ("deploy.yaml", "deploy.json"):
        path = tmp_path / name
        path.write_bytes(data)
        with contextlib.suppress(ConfigError):
            load_deploy(path)
