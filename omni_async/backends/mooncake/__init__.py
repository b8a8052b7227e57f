"""Mooncake: ``MooncakeTransferEngineConnector`` and ``MooncakeStoreConnector``; options only."""

from __future__ import annotations

from .config import MooncakeStoreOptions, MooncakeTransferEngineOptions

__all__ = ["MooncakeStoreOptions", "MooncakeTransferEngineOptions"]
