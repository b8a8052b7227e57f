"""The demo's processors: however a stage's output comes, the chunks are those of the deploy file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async import ConfigError, EdgeName
from omni_async.stream import Context

torch = pytest.importorskip("torch")

from omni_async.cli.demo.processors import talker2code2wav, thinker2talker  # noqa: E402 - needs torch

pieces = st.lists(st.integers(0, 40), min_size=1, max_size=12)
KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "codec_chunk_frames": st.integers(1, 30),
        "initial_codec_chunk_frames": st.integers(0, 12),
        "codec_left_context_frames": st.integers(0, 30),
    },
)


def chunks_of(processor: Any, outputs: list[Any], knobs: Any, end_alone: bool) -> list[Any]:
    """All chunks; the end comes with the last output, or by itself."""
    context = Context("r", EdgeName("1", "2"), knobs)
    chunks = []
    for number, output in enumerate(outputs):
        context.finished = not end_alone and number == len(outputs) - 1
        chunks += processor(output, context)
    if end_alone:
        context.finished = True
        chunks += processor(None, context)
    return chunks


def lengths(total: int, knobs: Any) -> list[int]:
    later = knobs.get("codec_chunk_frames", 25)
    found, wanted = [], knobs.get("initial_codec_chunk_frames", 0) or later
    while total:
        found.append(min(wanted, total))
        total -= found[-1]
        wanted = later
    return found


@given(pieces, KNOBS, st.booleans())
def test_hidden_states(pieces: list[int], knobs: Any, end_alone: bool) -> None:
    whole = torch.arange(sum(pieces) * 4, dtype=torch.bfloat16).reshape(-1, 4)
    meta = {"rate": 16_000}
    outputs = [{"hidden": piece, "meta": meta} for piece in whole.split(pieces)]
    chunks = chunks_of(thinker2talker, outputs, knobs, end_alone)
    assert [len(chunk["hidden"]) for chunk in chunks] == lengths(len(whole), knobs)
    if chunks:
        assert torch.equal(torch.cat([chunk["hidden"] for chunk in chunks]), whole)
    assert all(chunk["meta"] == meta for chunk in chunks)


@given(pieces, KNOBS, st.booleans())
def test_codes(pieces: list[int], knobs: Any, end_alone: bool) -> None:
    whole = torch.arange(sum(pieces) * 3, dtype=torch.int32).reshape(3, -1)
    outputs = [{"codes": piece, "meta": {"n": 1}} for piece in whole.split(pieces, dim=1)]
    chunks = chunks_of(talker2code2wav, outputs, knobs, end_alone)
    new = [chunk["codes"][:, chunk["left_context_frames"] :] for chunk in chunks]
    assert [piece.shape[1] for piece in new] == lengths(whole.shape[1], knobs)
    done = 0
    for chunk, piece in zip(chunks, new, strict=True):
        context = min(done, knobs.get("codec_left_context_frames", 25))
        done += piece.shape[1]
        assert torch.equal(chunk["codes"], whole[:, done - piece.shape[1] - context : done])
        assert chunk["meta"] == {"n": 1}


@pytest.mark.parametrize("processor", [thinker2talker, talker2code2wav])
def test_a_request_that_ends_before_it_began_has_no_chunks(processor: Any) -> None:
    assert chunks_of(processor, [], {}, end_alone=True) == []


@pytest.mark.parametrize("processor", [thinker2talker, talker2code2wav])
def test_a_knob_that_makes_no_sense_is_told_with_its_edge(processor: Any) -> None:
    with pytest.raises(ConfigError, match=r"^edge 1->2: codec_chunk_frames "):
        chunks_of(processor, [], {"codec_chunk_frames": 0}, end_alone=True)
