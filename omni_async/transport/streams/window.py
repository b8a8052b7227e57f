"""How many chunks of a stream may be under way.

In: ``window_size`` and ``max_inflight`` of an edge. Out: one number.
Never: knows a stream.
"""

from __future__ import annotations

DEFAULT_WINDOW = 32
"""Chunks, where a deploy file sets no limit."""


def window_of(window_size: int = -1, max_inflight: int = -1) -> int:
    """The smaller of the limits that are set; -1 is none.

    A chunk counts from the moment it is sent until its reader has taken it: both names of the deploy
    file mean that.
    """
    limits = [limit for limit in (window_size, max_inflight) if limit > 0]
    return min(limits, default=DEFAULT_WINDOW)
