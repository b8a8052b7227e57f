"""What an instance tells a proxy of itself: once a second, and by that it is registered.

In: addresses, sizes, mode. Out: one MessagePack map, and back.
Never: sends it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ...errors import ProtocolError

Role = Literal["P", "D"]
Mode = Literal["READ", "WRITE"]


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """One instance in one role."""

    type: Role
    http_address: str
    """``IP:PORT``, an IPv6 address in brackets: see :func:`~.addresses.http_address`."""
    zmq_address: str
    dp_size: int = 1
    tp_size: int = 1
    transfer_mode: Mode
    """One for all instances of a proxy: the first that registers decides, until the proxy is restarted."""

    def packed(self) -> bytes:
        """The message, a single frame."""
        return _encode(self)

    @classmethod
    def parse(cls, body: bytes | memoryview) -> Registered:
        """Raises: ProtocolError: it is no such message."""
        try:
            return _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{len(body)} bytes register no instance: {error}") from None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Registered).decode
