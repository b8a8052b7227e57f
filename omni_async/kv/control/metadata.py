"""What an instance's rank answers in the handshake: its engine, its caches, and what only this library asks.

In: descriptors and sizes. Out: the two messages of an answer, and back.
Never: knows what is in a descriptor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import ProtocolError

QUESTION = b"get_meta_msg"
VERSION = 1


class OwnMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What this library says beyond the map that all have; others do not look at it."""

    version: int = VERSION
    layout: dict[str, Any] = {}
    """Of the caches, as plain values."""
    backend: str = ""
    """Connector that moves the bytes."""
    transport: str = ""
    """Where a consumer dials for words; empty where a producer is not here."""
    endpoint: tuple[str, str, int, int] | None = None
    """Namespace, stage, rank and replica of that."""
    incarnation: str = ""
    tp_size: int = 1
    tp_rank: int = 0
    dp_size: int = 1
    dp_rank: int = 0
    modes: tuple[str, ...] = ("write", "read")
    notices: tuple[str, ...] = ("write_failed",)
    """Notices that older listeners do not bear."""


class AgentMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The map that all have. A value that a reader does not know is left alone."""

    engine_id: str
    agent_metadata: bytes = b""
    """The vendor's descriptor of the engine."""
    kv_caches_base_addr: list[int] = []
    num_blocks: int = 0
    block_len: int = 0
    """Bytes of one block of the first layer."""
    attn_backend_name: str = ""
    omni_async: OwnMetadata | None = None
    """``None`` where somebody else answers."""


Layers = dict[str, list[bytes]]
"""Layer → the vendor's descriptors of its memory."""

_encode = msgspec.msgpack.Encoder().encode
_metadata = msgspec.msgpack.Decoder(AgentMetadata).decode
_layers = msgspec.msgpack.Decoder(Layers).decode


def packed_answer(metadata: AgentMetadata, layers: Layers) -> tuple[bytes, bytes]:
    """The bodies of both messages."""
    return _encode(metadata), _encode(layers)


def parse_answer(bodies: Sequence[bytes], peer: str) -> tuple[AgentMetadata, Layers]:
    """Read an answer.

    Raises:
        ProtocolError: it is none, or one of another version of this library.
    """
    try:
        metadata, layers = _metadata(bodies[0]), _layers(bodies[1])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(
            f"{peer} answers the handshake with something else: {error}", peer=peer
        ) from None
    own = metadata.omni_async
    if own is not None and own.version != VERSION:
        raise ProtocolError(
            f"{peer} speaks version {own.version} of the handshake, this side version {VERSION}",
            peer=peer,
        )
    return metadata, layers
