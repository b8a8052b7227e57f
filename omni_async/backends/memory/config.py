"""Options of ``MemoryConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system.
"""

from __future__ import annotations

from ...abc import Options


class MemoryOptions(Options):
    """One process needs no options of its own."""

    @property
    def cross_host(self) -> bool:
        return False
