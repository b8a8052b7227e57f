"""NIXL: ``NixlConnector``."""

from __future__ import annotations

from .backend import NixlBackend
from .config import NixlOptions

__all__ = ["NixlBackend", "NixlOptions"]
