"""The hall: it calls the rooms, rooms never call each other."""

from __future__ import annotations

from .base import Transport
from .delivery import Delivery
from .edge import Edge
from .limits import DEFAULT
from .opening import open_transport

__all__ = ["DEFAULT", "Delivery", "Edge", "Transport", "open_transport"]
