"""NIXL: ``NixlConnector``; options only."""

from __future__ import annotations

from .config import NixlOptions

__all__ = ["NixlOptions"]
