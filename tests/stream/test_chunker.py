"""FrameChunker: whatever the split, the same chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async import ConfigError, FrameChunker, UsageError
from omni_async.deploy.knobs import KNOBS
from omni_async.stream import FrameChunk


def frames(count: int, q: int = 3) -> Any:
    return np.arange(q * count, dtype=np.int64).reshape(q, count)


def cut(chunker: FrameChunker, whole: Any, ends: list[int]) -> list[FrameChunk]:
    out, begin = [], 0
    for end in [*sorted(ends), whole.shape[1]]:
        out += chunker.push(whole[:, begin:end])
        begin = end
    return out + chunker.flush()


@given(
    count=st.integers(0, 300),
    q=st.integers(1, 4),
    chunk=st.integers(1, 40),
    left=st.integers(0, 60),
    initial=st.none() | st.integers(0, 60),
    data=st.data(),
)
def test_any_split_equals_one_piece(
    count: int, q: int, chunk: int, left: int, initial: int | None, data: st.DataObject
) -> None:
    whole = frames(count, q)
    ends = data.draw(st.lists(st.integers(0, count), max_size=8))
    once = cut(FrameChunker(chunk, left, initial), whole, [])
    pieces = cut(FrameChunker(chunk, left, initial), whole, ends)
    assert [c.left_context_frames for c in once] == [c.left_context_frames for c in pieces]
    for one, other in zip(once, pieces, strict=True):
        assert np.array_equal(one.frames, other.frames)

    position = 0
    for number, each in enumerate(pieces):
        new = each.new.shape[1]
        full = (initial or chunk) if number == 0 else chunk
        assert new == full or (each is pieces[-1] and 0 < new < full)
        assert each.left_context_frames == min(position, left)
        begin = position - each.left_context_frames
        assert np.array_equal(each.frames, whole[:, begin : position + new])
        position += new
    assert position == count


def test_the_last_call_flushes_and_the_next_begins_anew() -> None:
    chunker = FrameChunker(4, 2)
    assert chunker.push(frames(3)) == []
    assert chunker.pending == 3
    [tail] = chunker.flush()
    assert tail.frames.shape == (3, 3)
    assert chunker.flush() == []
    assert chunker.pending == 0
    [first] = chunker.push(frames(4, q=5))
    assert (first.left_context_frames, first.frames.shape) == (0, (5, 4))


def test_the_callers_memory_is_its_own_again() -> None:
    buffer = frames(3)
    chunker = FrameChunker(6, 3)
    chunker.push(buffer)
    buffer[:] = -1
    [chunk] = chunker.push(frames(3))
    assert np.array_equal(chunk.frames, np.concatenate([frames(3), frames(3)], axis=1))
    chunk.frames[:] = -1
    [later] = chunker.push(frames(6))
    assert np.array_equal(later.frames[:, :3], frames(3))


def test_memory_does_not_grow_with_the_stream() -> None:
    chunker = FrameChunker(25, 25)
    for _ in range(2000):
        chunker.push(frames(50))
        assert chunker._held.nbytes <= 3 * 8 * (25 + 25)
        assert chunker._held.base is None


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(3 * 70).reshape(3, 70)
    chunks = cut(FrameChunker(25, 10), whole, [13, 14, 60])
    assert all(type(chunk.frames) is torch.Tensor for chunk in chunks)
    assert torch.equal(torch.cat([chunk.new for chunk in chunks], dim=1), whole)
    assert all(chunk.frames.is_contiguous() for chunk in chunks)


@pytest.mark.parametrize(
    "wrong",
    [
        frames(3, q=4),
        frames(3).astype(np.int32),
        frames(3)[0],
        frames(3)[None],
        [[1, 2], [3, 4]],
        None,
    ],
)
def test_frames_of_another_kind_are_refused(wrong: Any) -> None:
    chunker = FrameChunker()
    chunker.push(frames(2))
    with pytest.raises(UsageError, match="frames"):
        chunker.push(wrong)
    assert chunker.pending == 2


@pytest.mark.parametrize(
    "arguments", [(0,), (-1,), (True,), (2.0,), (1, -1), (1, "2"), (1, 1, -1), (1, 1, "x")]
)
def test_numbers_that_are_none_are_refused(arguments: Any) -> None:
    with pytest.raises(UsageError, match="at least"):
        FrameChunker(*arguments)


def test_knobs_as_deploy_files_write_them() -> None:
    knobs = {
        "codec_chunk_frames": 50,
        "codec_left_context_frames": 3,
        "initial_codec_chunk_frames": 4,
    }
    assert set(knobs) <= set(KNOBS)
    chunker = FrameChunker.from_knobs({**knobs, "crossfade_sec": 0.1})
    found = chunker.chunk_frames, chunker.left_context_frames, chunker.initial_chunk_frames
    assert found == (50, 3, 4)
    chunker = FrameChunker.from_knobs({"initial_codec_chunk_frames": 0, "codec_chunk_frames": None})
    found = chunker.chunk_frames, chunker.left_context_frames, chunker.initial_chunk_frames
    assert found == (25, 25, 25)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("codec_chunk_frames", 0),
        ("codec_chunk_frames", [25, 50]),
        ("codec_left_context_frames", -1),
        ("initial_codec_chunk_frames", "4"),
    ],
)
def test_a_knob_that_is_no_number_is_named(knob: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"edge 1->2: {knob} .*not") as refused:
        FrameChunker.from_knobs({knob: value}, "edge 1->2")
    assert refused.value.path == knob
