"""Shared memory on one host: ``SharedMemoryConnector``."""

from __future__ import annotations

from .backend import SharedMemoryBackend
from .config import SharedMemoryOptions

__all__ = ["SharedMemoryBackend", "SharedMemoryOptions"]
