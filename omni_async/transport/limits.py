"""Time limits of put and get.

In: what a caller passed as ``timeout``. Out: seconds.
Never: reads a clock.
"""

from __future__ import annotations

import enum
from typing import Final

from .._aio.deadline import seconds


class Default(enum.Enum):
    """The type of :data:`DEFAULT`."""

    DEFAULT = "DEFAULT"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default.DEFAULT
"""The documented limits: see :func:`offer_limit` and :func:`move_limit`."""

Timeout = float | None | Default
"""Seconds; ``None`` for no limit; ``0`` to ask once; :data:`DEFAULT`."""

PUT_SECONDS = 30.0
OFFER_SECONDS = 30.0
MOVE_SECONDS = 30.0
MOVE_SECONDS_PER_PIECE = 5.0
MOVE_PIECE = 100 << 20

ASK_SECONDS = 2.0
"""How long a get with ``timeout=0`` waits for the word of a peer that is there."""


def put_limit(timeout: Timeout) -> float | None:
    """Seconds that a put may wait for space."""
    return PUT_SECONDS if timeout is DEFAULT else seconds(timeout)


def offer_limit(timeout: Timeout) -> float | None:
    """Seconds that a get may wait to be offered its payload."""
    return OFFER_SECONDS if timeout is DEFAULT else seconds(timeout)


def move_limit(nbytes: int) -> float:
    """Seconds that moving ``nbytes`` may take under :data:`DEFAULT`."""
    return MOVE_SECONDS + MOVE_SECONDS_PER_PIECE * (nbytes // MOVE_PIECE)
