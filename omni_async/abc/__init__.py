"""The doors a backend author builds, and nothing that runs."""

from __future__ import annotations

from .backend import Backend, DirectBackend
from .channel import Channel, ChannelHandler, Channels, Dialer, Listener, Stranger
from .engine import Engine, RemoteRegion, Revoke
from .memory import Block, MemorySource
from .options import AddressedOptions, Options, option

__all__ = [
    "AddressedOptions",
    "Backend",
    "Block",
    "Channel",
    "ChannelHandler",
    "Channels",
    "Dialer",
    "DirectBackend",
    "Engine",
    "Listener",
    "MemorySource",
    "Options",
    "RemoteRegion",
    "Revoke",
    "Stranger",
    "option",
]
