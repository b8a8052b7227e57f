"""How many frames go into a chunk, as a deploy file says for an edge.

In: the knobs of a connector. Out: lengths of chunks, or an error that names the knob.
Never: knows what a frame is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any, NamedTuple

from omni_async import ConfigError

CHUNK_FRAMES = 25
"""Where the file says nothing."""


class Chunking(NamedTuple):
    """Frames in the chunks of a request; its last chunk may have fewer."""

    first: int = CHUNK_FRAMES
    """Fewer than later ones where sound should begin early."""
    later: int = CHUNK_FRAMES

    @classmethod
    def of(cls, knobs: Mapping[str, Any], where: str) -> Chunking:
        """What ``initial_codec_chunk_frames`` and ``codec_chunk_frames`` ask for.

        Raises:
            ConfigError: one of them is not a number of frames; tells ``where``.
        """
        later = _frames(knobs, "codec_chunk_frames", CHUNK_FRAMES, 1, where)
        # 0 is how a file says that the first chunk is like the others.
        return cls(_frames(knobs, "initial_codec_chunk_frames", 0, 0, where) or later, later)

    def lengths(self) -> Iterator[int]:
        """One for each chunk, without an end."""
        return chain([self.first], repeat(self.later))


def _frames(knobs: Mapping[str, Any], key: str, default: int, least: int, where: str) -> int:
    value = knobs.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        text = f"{where}: {key} is {value!r}; the demo takes one whole number from {least}"
        raise ConfigError(text, path=key)
    return value
