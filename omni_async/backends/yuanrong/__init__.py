"""Yuanrong: ``YuanrongConnector`` and ``YuanrongTransferEngineConnector``; options only."""

from __future__ import annotations

from .config import YuanrongOptions, YuanrongTransferEngineOptions

__all__ = ["YuanrongOptions", "YuanrongTransferEngineOptions"]
