"""FrameChunker: codec frames as they are made, in chunks as a decoder wants them.

In: pieces of frames [q, n], tensors or arrays. Out: chunks with the context left of them.
Never: lets the way the input was split show in the output; keeps more than a chunk and its context.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ..errors import ConfigError, UsageError

CHUNK_FRAMES = 25
LEFT_CONTEXT_FRAMES = 25


class FrameChunk(msgspec.Struct, frozen=True):
    """Frames [q, left_context_frames + n]."""

    frames: Any
    left_context_frames: int
    """How many of them were in earlier chunks."""

    @property
    def new(self) -> Any:
        """The frames [q, n] that were in no chunk before."""
        return self.frames[:, self.left_context_frames :]


class FrameChunker:
    """Cuts the frames of one request.

    Args:
        chunk_frames: new frames in a chunk; the last chunk may have fewer.
        left_context_frames: earlier frames that come again at the left of each chunk, as many as there are.
        initial_chunk_frames: new frames of the first chunk, where sound should begin early; ``None`` or 0
            for no difference.

    Raises:
        UsageError: no such numbers of frames.
    """

    def __init__(
        self,
        chunk_frames: int = CHUNK_FRAMES,
        left_context_frames: int = LEFT_CONTEXT_FRAMES,
        initial_chunk_frames: int | None = None,
    ) -> None:
        self.chunk_frames = _frames("chunk_frames", chunk_frames, 1)
        self.left_context_frames = _frames("left_context_frames", left_context_frames, 0)
        initial = _frames("initial_chunk_frames", initial_chunk_frames or 0, 0)
        self.initial_chunk_frames = initial or self.chunk_frames
        self._held: Any = None
        """Context, then frames that were in no chunk yet."""
        self._context = 0
        self._next = self.initial_chunk_frames

    @classmethod
    def from_knobs(cls, knobs: Mapping[str, Any], where: str = "") -> FrameChunker:
        """As a deploy file says for an edge.

        Reads ``codec_chunk_frames``, ``codec_left_context_frames`` and ``initial_codec_chunk_frames``.

        Args:
            knobs: :attr:`Edge.knobs`.
            where: what they belong to, for the error.

        Raises:
            ConfigError: one of them is no number of frames; ``path`` is its key.
        """
        where = f"{where}: " if where else ""
        return cls(
            _knob(knobs, "codec_chunk_frames", CHUNK_FRAMES, 1, where),
            _knob(knobs, "codec_left_context_frames", LEFT_CONTEXT_FRAMES, 0, where),
            _knob(knobs, "initial_codec_chunk_frames", 0, 0, where),
        )

    @property
    def pending(self) -> int:
        """Frames that were in no chunk yet."""
        return 0 if self._held is None else int(self._held.shape[1]) - self._context

    def push(self, frames: Any) -> list[FrameChunk]:
        """The chunks that these frames make whole.

        Args:
            frames: [q, n], a tensor or an array; q, type, device and kind as before. It is copied.

        Raises:
            UsageError: anything else.
        """
        self._held = _joined(self._held, frames)
        chunks = []
        while self.pending >= self._next:
            chunks.append(self._cut(self._next))
        if chunks:
            self._held = _copy(self._held)  # what was sent is not kept
        return chunks

    def flush(self) -> list[FrameChunk]:
        """What is left, at most one chunk. The next frames begin anew, without context."""
        chunks = [self._cut(self.pending)] if self.pending else []
        self._held, self._context, self._next = None, 0, self.initial_chunk_frames
        return chunks

    def _cut(self, new: int) -> FrameChunk:
        end = self._context + new
        chunk = FrameChunk(_copy(self._held[:, :end]), self._context)
        self._context = min(end, self.left_context_frames)
        self._held = self._held[:, end - self._context :]
        self._next = self.chunk_frames
        return chunk


def _frames(name: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise UsageError(f"{name} must be an int of at least {least}, not {value!r}")
    return value


def _knob(knobs: Mapping[str, Any], key: str, default: int, least: int, where: str) -> int:
    value = knobs.get(key)
    if value is None:
        return default
    if type(value) is not int or value < least:
        text = f"{where}{key} has to be a whole number of at least {least}, not {value!r}"
        raise ConfigError(text, path=key)
    return value


def _joined(held: Any, frames: Any) -> Any:
    """A copy of both in one piece: the caller may fill its memory anew."""
    torch = sys.modules.get("torch")
    tensor = torch is not None and isinstance(frames, torch.Tensor)
    if not (tensor or isinstance(frames, np.ndarray)) or frames.ndim != 2:
        raise UsageError(f"frames must be a tensor or an array [q, n], not {_shown(frames)}")
    if held is None:
        return _copy(frames)
    if _kind(held) != _kind(frames):
        raise UsageError(f"frames were {_shown(held)} before, and now are {_shown(frames)}")
    if tensor:
        return torch.cat([held, frames], dim=1)  # type: ignore[union-attr]
    return np.concatenate([held, frames], axis=1)


def _kind(frames: Any) -> tuple[Any, ...]:
    return type(frames), frames.shape[0], frames.dtype, getattr(frames, "device", None)


def _shown(frames: Any) -> str:
    if hasattr(frames, "shape") and hasattr(frames, "dtype"):
        return f"{type(frames).__name__} {list(frames.shape)} of {frames.dtype}"
    return type(frames).__name__


def _copy(frames: Any) -> Any:
    if isinstance(frames, np.ndarray):
        return frames.copy(order="C")
    return frames.clone(memory_format=sys.modules["torch"].contiguous_format)
