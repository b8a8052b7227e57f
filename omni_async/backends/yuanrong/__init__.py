"""Yuanrong's datasystem: ``YuanrongConnector``; options only."""

from __future__ import annotations

from .config import YuanrongOptions

__all__ = ["YuanrongOptions"]
