"""Yuanrong's datasystem: ``YuanrongConnector``.

What is here is imported when it is asked for: the client's process needs no options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backend import YuanrongBackend
    from .config import YuanrongOptions

__all__ = ["YuanrongBackend", "YuanrongOptions"]


def __getattr__(name: str) -> object:
    if name == "YuanrongBackend":
        from .backend import YuanrongBackend

        return YuanrongBackend
    if name == "YuanrongOptions":
        from .config import YuanrongOptions

        return YuanrongOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
