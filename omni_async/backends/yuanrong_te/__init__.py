"""Yuanrong's transfer engine: ``YuanrongTransferEngineConnector``; options only."""

from __future__ import annotations

from .config import YuanrongTransferEngineOptions

__all__ = ["YuanrongTransferEngineOptions"]
