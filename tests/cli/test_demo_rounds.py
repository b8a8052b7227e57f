"""Which rounds a demo runs, and what is made of what its processes say of them."""

from __future__ import annotations

from typing import Any

import pytest

from omni_async import load_deploy
from omni_async.cli.demo import words
from omni_async.cli.demo.child import Heard
from omni_async.cli.demo.layout import Layout
from omni_async.cli.demo.rounds import AT_ONCE, OFF, ON, WHOLE_NBYTES, Lap, planned

FRAME_NBYTES = 2048 * 2
MOST_SAMPLES = WHOLE_NBYTES // FRAME_NBYTES * 256 - 256 * AT_ONCE
"""What stages may keep of all requests at a time, in sound."""


def layout(**file: Any) -> Layout:
    edges = [{"from": 0, "to": 1}, {"from": 1, "to": 2}]
    stages = [{"stage_id": id} for id in range(3)]
    return Layout.of(load_deploy({"stages": stages, "edges": edges, **file}))


def test_streaming_is_compared_with_the_same_without() -> None:
    rounds, why = planned(layout(), "d.yaml", [10**6], compare=True)
    assert ([round.name for round in rounds], why) == ([ON, OFF], None)
    assert rounds[0].overrides == {}
    assert rounds[1].overrides["async_chunk"] is False
    assert len({round.file("req-0") for round in rounds}) == 2


@pytest.mark.parametrize(
    ("file", "samples", "compare", "name", "why"),
    [
        ({"async_chunk": False}, [1], True, OFF, "async_chunk is false in d.yaml"),
        ({"async_chunk": False}, [1], False, OFF, "async_chunk is false in d.yaml"),
        ({}, [1], False, ON, "it was not wanted"),
        ({}, [2 * MOST_SAMPLES], True, ON, "stages would keep 2.1 GB of hidden states"),
        ({}, [MOST_SAMPLES // 8 + 10**5] * 9, True, ON, "stages would keep 1.1 GB"),
    ],
)
def test_a_run_that_is_not_compared_says_why(
    file: Any, samples: list[int], compare: bool, name: str, why: str
) -> None:
    rounds, told = planned(layout(**file), "d.yaml", samples, compare)
    assert [round.name for round in rounds] == [name]
    assert rounds[0].overrides == {}
    assert told is not None
    assert why in told


def test_as_much_as_may_be_kept_is_compared() -> None:
    """Requests that are not worked on at the same time are not kept at the same time."""
    rounds, why = planned(layout(), "d.yaml", [MOST_SAMPLES // AT_ONCE] * 100, compare=True)
    assert (len(rounds), why) == (2, None)


def through(*stages: tuple[str, int, int]) -> Heard:
    """What a process of these stages said: id, chunks sent, chunks received."""
    heard = Heard([stage for stage, _, _ in stages])
    passed = [
        words.Passed(stage, sent, 0.25, words.Traffic(received, 4000, 2.0, 0.5, 1.5))
        for stage, sent, received in stages
    ]
    heard.result = words.Through(passed, words.Lag(1.0, 2.0, 3.0))
    return heard


def lap(name: str, received: int = 5) -> Lap:
    heard = [through(("0", 4, 0), ("1", 5, 4)), through(("2", 0, received))]
    made = Lap(words.Round(name), heard, requests=2)
    for number, first in enumerate((30.0, 10.0)):
        heard[-1].finished[f"req-{number}"] = words.Finished(f"req-{number}", first)
        assert not made.seconds
        made.note()
    return made


def test_a_round_has_its_edges_its_stages_and_its_first_audio() -> None:
    made = lap(ON).result(layout(), ["req-1"])
    assert made.streaming
    assert made.seconds > 0
    assert made.different == ["req-1"]
    assert (made.first_audio_ms.p50, made.first_audio_ms.p99) == (30.0, 30.0)
    assert [(edge.edge, edge.sent, edge.received) for edge in made.edges] == [
        ("0->1", 4, 4),
        ("1->2", 5, 5),
    ]
    assert (made.edges[0].waited_ms_mean, made.edges[0].nbytes_per_second) == (62.5, 2000.0)
    assert [stage.process for stage in made.stages] == [0, 0, 1]
    assert made.complete
    assert not lap(OFF, received=3).result(layout(), []).complete
