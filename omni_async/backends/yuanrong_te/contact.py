"""What peers' engines tell of themselves, checked.

In: descriptors of peers. Out: sessions and regions, or ProtocolError.
Never: reaches the engine.
"""

from __future__ import annotations

import ipaddress

import msgspec

from ...errors import ProtocolError


class EngineWord(msgspec.Struct, frozen=True):
    """What an engine tells of itself in the handshake."""

    session: str
    """``host:port`` where it listens; the host is an IPv4 address."""
    npu: str = ""
    """Address of its NPU in the network of NPUs, where that is known; for people."""


_decoder = msgspec.msgpack.Decoder(EngineWord)


def read_word(descriptor: bytes) -> EngineWord:
    """What a peer told of its engine.

    Raises:
        ProtocolError: nonsense.
    """
    try:
        word = _decoder.decode(descriptor)
        host, _, port = word.session.rpartition(":")
        ipaddress.IPv4Address(host)
    except (msgspec.DecodeError, ValueError):
        pass
    else:
        if port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16:
            return word
    raise ProtocolError(f"the peer's engine is told as {descriptor[:80]!r}")
