"""MORI-IO of AMD: ``MoriTransferEngineConnector``; options only."""

from __future__ import annotations

from .config import MoriTransferEngineOptions

__all__ = ["MoriTransferEngineOptions"]
