"""MORI-IO of AMD: ``MoriTransferEngineConnector``."""

from __future__ import annotations

from .backend import MoriTransferEngineBackend
from .config import MoriTransferEngineOptions

__all__ = ["MoriTransferEngineBackend", "MoriTransferEngineOptions"]
