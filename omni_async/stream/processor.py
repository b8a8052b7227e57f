"""Processors: what makes chunks for the next stage of a stage's outputs.

In: an output and what is known of its request. Out: chunks.
Never: sends one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..model import EdgeName
from .chunker import FrameChunker


class Context:
    """What a processor knows of the request whose output it is given."""

    __slots__ = (
        "active",
        "chunks",
        "edge",
        "finished",
        "knobs",
        "request_id",
        "segment_ended",
        "state",
    )

    def __init__(self, request_id: str, edge: EdgeName, knobs: Mapping[str, Any]) -> None:
        self.request_id = request_id
        self.edge = edge
        self.knobs = knobs
        """What the deploy file says for the edge, such as ``codec_chunk_frames``."""
        self.state: dict[str, Any] = {}
        """The processor's own, for this segment of this request."""
        self.finished = False
        """Whether this is the last output: what was held back has to be returned now."""
        self.segment_ended = False
        """Whether a segment ends behind this output: as ``finished``, and the stream goes on."""
        self.chunks = 0
        """Chunks that were made of this request so far."""
        self.active = 0
        """Requests that are being written on this edge."""

    @property
    def last(self) -> bool:
        """Whether the request or a segment of it ends here."""
        return self.finished or self.segment_ended


class Processor(Protocol):
    """Any callable of this shape. It runs on the event loop: let it be quick.

    Args:
        output: what was submitted; ``None`` where only an end was.
        context: of its request.

    What it returns is sent in order; an empty list or ``None`` sends nothing. What it raises fails its
    request, here and at the consumer, and no other one.
    """

    def __call__(self, output: Any, context: Context, /) -> Sequence[Any] | None: ...


def as_they_are(output: Any, context: Context, /) -> Sequence[Any]:
    """Each output is a chunk; ``None`` is none."""
    return () if output is None else (output,)


def frame_chunks(output: Any, context: Context, /) -> Sequence[Any]:
    """Codec frames [q, n] in, chunks ``{"codes": {"audio": frames}, "meta": {"left_context_size": n}}`` out.

    The knobs of the edge say how long they are: see :meth:`FrameChunker.from_knobs`.
    """
    chunker = context.state.get("chunker")
    if chunker is None:
        chunker = FrameChunker.from_knobs(context.knobs, f"edge {context.edge}")
        context.state["chunker"] = chunker
    chunks = [] if output is None else chunker.push(output)
    if context.last:
        chunks += chunker.flush()
    return [
        {
            "codes": {"audio": chunk.frames},
            "meta": {"left_context_size": chunk.left_context_frames},
        }
        for chunk in chunks
    ]
