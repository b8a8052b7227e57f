"""Which stage plays which part, which ones share a process, whether they stream, what is refused."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from omni_async import BackendUnavailable, ConfigError, load_deploy
from omni_async.cli.demo.layout import Layout

DATA = Path(__file__).parent / "data"


def row(first: Any, second: Any, ids: tuple[Any, ...] = (0, 1, 2)) -> dict[str, Any]:
    a, b, c = ids
    return {
        "stages": [
            {"stage_id": a},
            {"stage_id": b, "input_connectors": {f"from_stage_{a}": first}},
            {"stage_id": c, "input_connectors": {f"from_stage_{b}": second}},
        ]
    }


def shm(**extra: Any) -> dict[str, Any]:
    return {"name": "SharedMemoryConnector", "extra": extra}


MEMORY = {"name": "MemoryConnector"}


@pytest.mark.parametrize(
    ("first", "second", "processes"),
    [
        (shm(), shm(), (("0",), ("1",), ("2",))),
        (MEMORY, shm(), (("0", "1"), ("2",))),
        (shm(), MEMORY, (("0",), ("1", "2"))),
        (MEMORY, {"name": "memory"}, (("0", "1", "2"),)),
    ],
)
def test_a_memory_edge_stays_in_one_process(first: Any, second: Any, processes: Any) -> None:
    assert Layout.of(load_deploy(row(first, second))).processes == processes


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_parts_follow_from_the_edges(order: tuple[int, ...]) -> None:
    file = row(shm(), shm(), ("ear", 7, "mouth"))
    file["stages"] = [file["stages"][i] for i in order]
    layout = Layout.of(load_deploy(file))
    assert layout.stages == ("ear", "7", "mouth")
    assert [layout.name(id) for id in layout.stages] == ["Thinker", "Talker", "Code2Wav"]
    assert [str(wire.name) for wire in layout.wires] == ["ear->7", "7->mouth"]


def test_the_peers_wiring_needs_nothing_of_its_own() -> None:
    layout = Layout.of(load_deploy(DATA / "qwen3_omni_moe.yaml"))
    assert layout.stages == ("0", "1", "2")
    assert layout.processes == (("0",), ("1",), ("2",))
    assert layout.streaming


@pytest.mark.parametrize(
    ("stages", "edges", "told"),
    [
        ("0", "", "0 with no edge"),
        ("012", "01 02", "0, 1, 2 with 0->1, 0->2"),
        ("012", "02 12", "0, 1, 2 with 0->2, 1->2"),
        ("012", "01 12 20", "0, 1, 2 with 0->1, 1->2, 2->0"),
        ("012", "01 10", "0, 1, 2 with 0->1, 1->0"),
        ("0123", "01 12", "0, 1, 2, 3 with 0->1, 1->2"),
        ("0123", "01 12 23", "0, 1, 2, 3 with 0->1, 1->2, 2->3"),
    ],
)
def test_other_wirings_are_refused(stages: str, edges: str, told: str) -> None:
    deploy = load_deploy(
        {
            "stages": [{"stage_id": id} for id in stages],
            "edges": [{"from": edge[0], "to": edge[1]} for edge in edges.split()],
        }
    )
    with pytest.raises(ConfigError) as caught:
        Layout.of(deploy)
    assert "three stages in a row, Thinker -> Talker -> Code2Wav; " in str(caught.value)
    assert str(caught.value).endswith(f"there are stages {told}")


def test_connectors_that_are_not_here_are_named_with_their_edges(later: str) -> None:
    missing = [{"name": later}, {"name": "later"}]
    with pytest.raises(BackendUnavailable) as caught:
        Layout.of(load_deploy(row(missing[0], missing[1])))
    text = str(caught.value)
    assert "0->1: LaterConnector is not part of this release" in text
    assert "1->2: LaterConnector is not part of this release" in text
    assert caught.value.remedy is not None
    assert text.endswith(f"; {caught.value.remedy}")
    with pytest.raises(BackendUnavailable, match=r": 1->2: LaterConnector"):
        Layout.of(load_deploy(row(shm(), missing[1])))


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [
        ("codec_chunk_frames", 0, 1),
        ("codec_chunk_frames", True, 1),
        ("codec_chunk_frames", [25, 50], 1),
        ("codec_left_context_frames", -1, 0),
        ("initial_codec_chunk_frames", -1, 0),
        ("initial_codec_chunk_frames", "4", 0),
    ],
)
def test_a_knob_that_is_no_number_of_frames_is_refused(key: str, value: Any, least: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout.of(load_deploy(row(shm(), shm(**{key: value}))))
    told = f": 1->2: {key} has to be a whole number of at least {least}, not {value!r}"
    assert str(caught.value).endswith(told)
    assert caught.value.path == key


@pytest.mark.parametrize(
    ("flags", "streaming"),
    [
        ((None, None, None), True),
        ((False, None, None), True),
        ((False, False, True), False),
        ((None, False, False), True),
    ],
)
def test_it_streams_when_any_stage_does_that_sends(flags: Any, streaming: bool) -> None:
    file = row(shm(), MEMORY, ("ear", 7, "mouth"))
    for stage, flag in zip(file["stages"], flags, strict=True):
        stage.update({} if flag is None else {"async_chunk": flag})
    layout = Layout.of(load_deploy(file))
    assert layout.streaming is streaming
    off = load_deploy(file, overrides=layout.without_streaming())
    assert [plan.async_chunk for plan in off.stages.values()] == [False] * 3
    assert Layout.of(off) == layout._replace(streaming=False)
