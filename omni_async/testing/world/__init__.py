"""A world in which the rendezvous cores are tested without I/O."""

from __future__ import annotations

from .nature import KEYS, RECEIVERS, STAGES, Network
from .walk import Broken, Step, tell, walk
from .world import World

__all__ = ["KEYS", "RECEIVERS", "STAGES", "Broken", "Network", "Step", "World", "tell", "walk"]
