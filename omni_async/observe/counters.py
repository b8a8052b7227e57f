"""Counters of one transport.

In: plain increments on the event loop. Out: the numbers that ``health()`` reports.
Never: locks, resets.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Counters(msgspec.Struct):
    """Totals since the transport opened. Names are those of :class:`omni_async.model.Health`."""

    puts: int = 0
    gets: int = 0
    bytes_transferred: int = 0
    """Payload bytes put or got, without alignment."""
    errors: int = 0
    """Operations that ended in an error other than their time limit; cancellations do not count."""
    timeouts: int = 0
    """Operations that ended by their time limit."""
    misses: int = 0
    """Gets that were told that there is nothing, or that it has expired: an answer, no error."""
    transport_faults: int = 0
    """Of the errors, those of an engine, a store or a lost peer."""
    decode_faults: int = 0
    """Of the errors, payloads that could not be decoded here."""

    def as_dict(self) -> dict[str, Any]:
        """The totals by name, ready to be passed to ``Health``."""
        return {name: getattr(self, name) for name in self.__struct_fields__}
