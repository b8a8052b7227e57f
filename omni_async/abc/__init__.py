"""The doors a backend author builds, and nothing that runs."""

from __future__ import annotations

from .backend import Backend, DirectBackend, StoreBackend
from .channel import Channel, ChannelHandler, Channels, Dialer, Listener, Stranger
from .engine import Engine, RemoteRegion, Revoke
from .findings import Finding, Sight
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
    "Finding",
    "Gone",
    "Listener",
    "MemorySource",
    "Options",
    "Piece",
    "RemoteRegion",
    "Revoke",
    "Sight",
    "Store",
    "StoreBackend",
    "StoreOptions",
    "Stranger",
    "option",
]
