"""Streams of many requests at once: the adapter that a scheduler drives, and what goes with it."""

from __future__ import annotations

from .adapter import ChunkTransferAdapter
from .chunker import FrameChunk, FrameChunker
from .events import (
    ChunkReady,
    Event,
    SegmentEnded,
    StreamFailed,
    StreamFinished,
    StreamState,
)
from .limits import Limits
from .processor import Context, Processor, frame_chunks

__all__ = [
    "ChunkReady",
    "ChunkTransferAdapter",
    "Context",
    "Event",
    "FrameChunk",
    "FrameChunker",
    "Limits",
    "Processor",
    "SegmentEnded",
    "StreamFailed",
    "StreamFinished",
    "StreamState",
    "frame_chunks",
]
