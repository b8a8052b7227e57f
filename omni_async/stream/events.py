"""What a consumer of many streams is told, and in which state a request is.

In: nothing. Out: frozen values.
Never: holds a stream.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ..errors import OmniAsyncError
from ..model import EdgeName


class ChunkReady(msgspec.Struct, frozen=True):
    """The next chunk of a request."""

    request_id: str
    chunk: Any
    index: int
    """From 0, over all segments."""
    segment: int
    """From 0."""


class SegmentEnded(msgspec.Struct, frozen=True):
    """A segment is whole; the stream goes on."""

    request_id: str
    segment: int
    index: int
    """Of the chunk that comes next."""


class StreamFinished(msgspec.Struct, frozen=True):
    """All chunks of a request were told; nothing comes behind this."""

    request_id: str
    chunks: int


class StreamFailed(msgspec.Struct, frozen=True):
    """A stream ended by an error; nothing comes behind this.

    It concerns what the request reads, or what it writes: ``edge`` tells.
    """

    request_id: str
    error: OmniAsyncError
    edge: EdgeName
    index: int
    """Of the chunk that did not come, or could not be sent."""


Event = ChunkReady | SegmentEnded | StreamFinished | StreamFailed


class StreamState(str, enum.Enum):
    """Of a request at one stage: what it reads, else what it writes."""

    UNKNOWN = "unknown"
    """Not registered, or over and its last event taken."""
    PARKED = "parked"
    """Registered; as many as may be active are active."""
    WAITING_FOR_CHUNK = "waiting_for_chunk"
    READY = "ready"
    """There are events to be taken."""
    FINISHED = "finished"
    """The only event to be taken is the end."""
    FAILED = "failed"
    """The only event to be taken is the failure."""
    SENDING = "sending"
    """(written only) More may be submitted."""
    DRAINING = "draining"
    """(written only) The last output was submitted, and waits to be sent."""
