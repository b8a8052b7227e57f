"""Mooncake's store: ``MooncakeStoreConnector``; options only."""

from __future__ import annotations

from .config import MooncakeStoreOptions

__all__ = ["MooncakeStoreOptions"]
