"""The doors a backend author builds, and nothing that runs."""

from __future__ import annotations

from .backend import Backend, DirectBackend, StoreBackend
from .channel import Channel, ChannelHandler, Channels, Dialer, Listener, Stranger
from .engine import Engine, RemoteRegion, Revoke
from .memory import Block, MemorySource
from .options import AddressedOptions, Options, StoreOptions, option
from .store import Gone, Piece, Store

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
    "Gone",
    "Listener",
    "MemorySource",
    "Options",
    "Piece",
    "RemoteRegion",
    "Revoke",
    "Store",
    "StoreBackend",
    "StoreOptions",
    "Stranger",
    "option",
]
