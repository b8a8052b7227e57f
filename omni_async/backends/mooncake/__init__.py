"""Mooncake's transfer engine: ``MooncakeTransferEngineConnector``."""

from __future__ import annotations

from .backend import MooncakeTransferEngineBackend
from .config import MooncakeTransferEngineOptions

__all__ = [
    "MooncakeTransferEngineBackend",
    "MooncakeTransferEngineOptions",
]
