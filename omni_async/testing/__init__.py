"""The public kit for authors of backends: conformance suite, faults, peer processes, leak checks.

In: a backend. Out: what it promises and does not keep.
Never: imports pytest or hypothesis here; :mod:`.conformance` and :mod:`.machines` do.
"""

from __future__ import annotations

from .faults import CancelAt, FaultyChannel, FaultyChannels, Moment
from .leaks import LeakError, no_leaks, no_leaks_blocking, quiet
from .orders import PeerError, PeerGone
from .processes import PeerProcess
from .recipes import Recipe, family, literal, pattern, sample, tree
from .sides import LocalSide, RemoteSide, Side

__all__ = [
    "CancelAt",
    "FaultyChannel",
    "FaultyChannels",
    "LeakError",
    "LocalSide",
    "Moment",
    "PeerError",
    "PeerGone",
    "PeerProcess",
    "Recipe",
    "RemoteSide",
    "Side",
    "family",
    "literal",
    "no_leaks",
    "no_leaks_blocking",
    "pattern",
    "quiet",
    "sample",
    "tree",
]
