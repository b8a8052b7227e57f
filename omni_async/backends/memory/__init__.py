"""One process: ``memory``, for tests and as the reference the others are compared with."""

from __future__ import annotations

from .backend import MemoryBackend

__all__ = ["MemoryBackend"]
