"""Mooncake's store: ``MooncakeStoreConnector``."""

from __future__ import annotations

from .backend import MooncakeStoreBackend
from .config import MooncakeStoreOptions

__all__ = ["MooncakeStoreBackend", "MooncakeStoreOptions"]
