"""Asyncio-native transports between the stages of omni-modality serving.

In: values. Out: the same values in another process.
Never: imports torch or zmq before somebody needs them.

Importing this loads errors and small values only; the rest is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import errors
from .errors import *  # noqa: F403 - the whole tree is public
from .model import Capabilities, ConnectorSpec, EdgeName, Health, Receipt

if TYPE_CHECKING:
    from .codec import register_type
    from .deploy import Deploy, Stage, load_deploy, open_stage
    from .pool import ManagedBuffer
    from .stream import (
        ChunkReady,
        ChunkTransferAdapter,
        FrameChunker,
        SegmentEnded,
        StreamFailed,
        StreamFinished,
        StreamState,
    )
    from .transport import DEFAULT, Delivery, Edge, Transport, open_transport
    from .transport.streams import ChunkReader, ChunkWriter

__version__ = "0.1.0"

__all__ = [
    "DEFAULT",
    "Capabilities",
    "ChunkReader",
    "ChunkReady",
    "ChunkTransferAdapter",
    "ChunkWriter",
    "ConnectorSpec",
    "Delivery",
    "Deploy",
    "Edge",
    "EdgeName",
    "FrameChunker",
    "Health",
    "ManagedBuffer",
    "Receipt",
    "SegmentEnded",
    "Stage",
    "StreamFailed",
    "StreamFinished",
    "StreamState",
    "Transport",
    "__version__",
    "load_deploy",
    "open_stage",
    "open_transport",
    "register_type",
]
__all__ += errors.__all__

_LATER = {
    "ChunkReader": "transport.streams",
    "ChunkReady": "stream",
    "ChunkTransferAdapter": "stream",
    "ChunkWriter": "transport.streams",
    "DEFAULT": "transport",
    "Delivery": "transport",
    "Deploy": "deploy",
    "Edge": "transport",
    "FrameChunker": "stream",
    "ManagedBuffer": "pool",
    "SegmentEnded": "stream",
    "Stage": "deploy",
    "StreamFailed": "stream",
    "StreamFinished": "stream",
    "StreamState": "stream",
    "Transport": "transport",
    "load_deploy": "deploy",
    "open_stage": "deploy",
    "open_transport": "transport",
    "register_type": "codec",
}
"""Name → the room it lives in."""


def __getattr__(name: str) -> object:
    room = _LATER.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(f".{room}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
