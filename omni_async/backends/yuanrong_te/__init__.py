"""Yuanrong's transfer engine: ``YuanrongTransferEngineConnector``."""

from __future__ import annotations

from .backend import YuanrongTransferEngineBackend
from .config import YuanrongTransferEngineOptions

__all__ = ["YuanrongTransferEngineBackend", "YuanrongTransferEngineOptions"]
