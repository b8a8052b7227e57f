"""The engine with words over Unix sockets: what is tried here is the engine, not the channel.

In: nothing. Out: a backend by the name ``mooncake-over-unix``.
Never: needs a port that is known beforehand.
"""

from __future__ import annotations

from omni_async.abc import Channels, Options
from omni_async.backends.mooncake.backend import MooncakeTransferEngineBackend
from omni_async.backends.mooncake.config import MooncakeTransferEngineOptions, Protocol
from omni_async.rendezvous.unix_channel import UnixChannels


class OverUnixOptions(MooncakeTransferEngineOptions):
    """Everything goes through the engine, over TCP."""

    addressed = False
    host: str = "127.0.0.1"
    protocol: Protocol = "tcp"
    inline_limit: int = 256


class MooncakeOverUnix(MooncakeTransferEngineBackend):
    name = "MooncakeOverUnix"
    alias = "mooncake-over-unix"
    options = OverUnixOptions

    def channels(self, options: Options) -> Channels:
        return UnixChannels(peer_timeout=options.peer_timeout)
