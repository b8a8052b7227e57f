"""Mooncake: ``MooncakeTransferEngineConnector``; of ``MooncakeStoreConnector`` the options only."""

from __future__ import annotations

from .backend import MooncakeTransferEngineBackend
from .config import MooncakeStoreOptions, MooncakeTransferEngineOptions

__all__ = [
    "MooncakeStoreOptions",
    "MooncakeTransferEngineBackend",
    "MooncakeTransferEngineOptions",
]
