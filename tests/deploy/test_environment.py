"""References to environment variables in the keys that are ours."""

from __future__ import annotations

from typing import Any

import pytest

from omni_async.deploy import load_deploy
from omni_async.deploy.environment import escaped, expand, typed
from omni_async.deploy.mistakes import Mistakes
from omni_async.deploy.tree import Node, Origin
from tests.deploy.files import mistakes, three_stages

ENVIRONMENT = {"A": "1", "B_2": "two", "YES": "True", "EMPTY": "", "DOLLAR": "$A"}


def said(text: Any) -> Any:
    found = Mistakes("test")
    node = expand(Node(text, Origin("file", "test", 3, "here")), ENVIRONMENT, found)
    found.settle()
    assert node is not None
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A", "1"),
        ("${A}", "1"),
        ("x$A", "x1"),
        ("${B_2}$A", "two1"),
        ("$B_2-$A", "two-1"),
        ("$EMPTY", ""),
        ("$DOLLAR", "$A"),  # what a variable holds is not looked at again
        ("$$A", "$A"),
        ("5 $ or $5", "5 $ or $5"),
        ("%A%", "%A%"),
        (5, 5),
        (None, None),
    ],
)
def test_what_becomes_of_a_reference(text: Any, value: Any) -> None:
    got = said(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("True", True),
        ("false", False),
        ("1.5", 1.5),
        (" 5", 5),
        ("", ""),
        ("1 a", "1 a"),
        ("[", "["),
        ("9" * 50, "9" * 50),
        (7, 7),
    ],
)
def test_what_a_number_looks_like(text: Any, value: Any) -> None:
    got = typed(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("text", ["$NONE", "a${NONE}b"])
def test_an_unset_variable_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"here \(line 3\): the environment variable NONE is not"):
        said(text)


@pytest.mark.parametrize("text", ["${}", "${1}", "${A B}", "${A:-1}"])
def test_no_variable(text: str) -> None:
    with pytest.raises(ValueError, match="is no variable"):
        said(text)


@pytest.mark.parametrize("text", ["$A", "${A}", "$$", "a$", "$$$A"])
def test_escaped_text_comes_back(text: str) -> None:
    assert said(escaped(text)) == text


def test_every_key_of_ours_may_refer(monkeypatch: Any, write: Any) -> None:
    for name, value in {"POOL": "4096", "HOST": "node-1", "N": "2", "CHUNK": "25"}.items():
        monkeypatch.setenv(name, value)
    path = write(
        "connectors:\n"
        "  c: {name: shm, extra: {memory_pool_size: $POOL, codec_chunk_frames: '${CHUNK}'}}\n"
        "stages:\n"
        "- stage_id: 0\n"
        "  host: ${HOST}.lan\n"
        "  num_replicas: $N\n"
        "  devices: $ENGINE\n"
        "  env: {LD_LIBRARY_PATH: $LD_LIBRARY_PATH:/x}\n"
        "  output_connectors: {to_stage_1: {name: shm, extra: {memory_pool_size: $POOL}}}\n"
        "- stage_id: 1\n"
        "  input_connectors: {from_stage_0: c}\n"
        "edges: [{from: 0, to: 1, max_inflight: $N}]\n"
    )
    deploy = load_deploy(path)
    (wire,) = deploy.wires
    assert wire.sender.options == wire.receiver.options == {"memory_pool_size": 4096}
    assert wire.receiver.knobs == {"codec_chunk_frames": 25}
    assert wire.max_inflight == 2
    stage = deploy.stage(0)
    assert (stage.host, stage.num_replicas) == ("node-1.lan", 2)
    assert stage.others == {
        "devices": "$ENGINE",
        "env": {"LD_LIBRARY_PATH": "$LD_LIBRARY_PATH:/x"},
    }
    origin = wire.receiver.origin("memory_pool_size")
    assert (origin.kind, origin.variables, origin.line) == ("environment", ("POOL",), 2)


def test_text_of_a_variable_is_read_as_the_options_type(monkeypatch: Any) -> None:
    monkeypatch.setenv("DIR", "007")
    monkeypatch.setenv("TTL", "1.5")
    extra = {"socket_dir": "$DIR", "buffer_ttl_seconds": "$TTL"}
    inline = {"name": "shm", "extra": extra}
    (wire,) = load_deploy(three_stages(output_connectors={"to_stage_1": inline})).wires
    assert wire.sender.options == {"socket_dir": "007", "buffer_ttl_seconds": 1.5}


def test_knobs_are_read_as_what_they_are_known_to_be(monkeypatch: Any) -> None:
    for name, value in {"ID": "5", "S": "0.5", "N": " 5"}.items():
        monkeypatch.setenv(name, value)
    extra = {"prompt_cache_id": "$ID", "crossfade_sec": "$S", "my_own_knob": "$N"}
    inline = {"name": "shm", "extra": extra}
    (wire,) = load_deploy(three_stages(output_connectors={"to_stage_1": inline})).wires
    assert wire.sender.knobs == {"prompt_cache_id": "5", "crossfade_sec": 0.5, "my_own_knob": 5}


def test_stages_are_matched_by_what_their_ids_come_to(monkeypatch: Any, write: Any) -> None:
    monkeypatch.setenv("SID", "0")
    write("stages: [{stage_id: $SID, devices: '1'}, {stage_id: 1}]", "base.yaml")
    text = (
        "base_config: base.yaml\n"
        "connectors: [{from_stage: $SID, to_stage: 1, spec: {name: shm}}]\n"
        "stages: [{stage_id: 0, host: h}]\n"
        "platforms: {npu: {stages: [{stage_id: '${SID}', num_replicas: 2}]}}\n"
    )
    deploy = load_deploy(write(text), platform="npu")
    assert list(deploy.stages) == ["0", "1"]
    first = deploy.stage(0)
    assert (first.host, first.num_replicas, first.others) == ("h", 2, {"devices": "1"})
    assert [str(wire.name) for wire in deploy.wires] == ["0->1"]


@pytest.mark.parametrize(
    "source",
    [
        {"stages": [{"stage_id": "$NOPE"}]},
        {"stages": [{"stage_id": 0}], "connectors": {"c": {"name": "$NOPE"}}},
        {"stages": [{"stage_id": 0}], "edges": [{"from": "$NOPE", "to": 0}]},
    ],
)
def test_an_unset_variable_is_told_once(source: Any) -> None:
    (text,) = mistakes(source).values()
    assert "NOPE is not set" in text


def test_a_base_may_be_named_by_the_environment(monkeypatch: Any, write: Any) -> None:
    monkeypatch.setenv("MODEL", "qwen")
    write("stages: [{stage_id: 0}]", "qwen.yaml")
    assert list(load_deploy(write("base_config: ${MODEL}.yaml")).stages) == ["0"]


def test_unset_variables_are_told_with_their_places() -> None:
    extra = {"memory_pool_size": "$NOT_SET_1", "list": ["${NOT_SET_2}"]}
    inline = {"name": "shm", "extra": extra}
    found = mistakes(three_stages(output_connectors={"to_stage_1": inline}, host="$NOT_SET_3"))
    below = "stages[0].output_connectors.to_stage_1.extra"
    assert set(found) == {f"{below}.memory_pool_size", f"{below}.list[0]", "stages[0].host"}
