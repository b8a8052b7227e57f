"""The deploy YAML: what a file says, what follows from it, and a stage opened from it."""

from __future__ import annotations

from .connectors import Connector
from .deployment import Deploy, StagePlan, Wire
from .loader import load_deploy
from .mistakes import Mistake
from .stage import Stage, open_stage
from .tree import Origin

__all__ = [
    "Connector",
    "Deploy",
    "Mistake",
    "Origin",
    "Stage",
    "StagePlan",
    "Wire",
    "load_deploy",
    "open_stage",
]
