"""Streams: ordered chunks over an edge, each exactly once, with credit instead of polling."""

from __future__ import annotations

from .reader import ChunkReader
from .window import DEFAULT_WINDOW, window_of
from .writer import ChunkWriter

__all__ = ["DEFAULT_WINDOW", "ChunkReader", "ChunkWriter", "window_of"]
