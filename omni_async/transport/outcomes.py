"""What is told of a put or a get: counters and events.

In: its end. Out: counters that went up, events in the log.
Never: changes what came of it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import (
    DecodeError,
    EngineFault,
    KeyNotFound,
    OmniAsyncError,
    PeerLost,
    TransferTimeout,
)
from ..model import Receipt, TransferKey
from ..observe import Counters, get_logger, span
from .delivery import Delivery

_log = get_logger("omni_async.transport")

Moved = TypeVar("Moved", Receipt, Delivery)


def count_error(counters: Counters, error: OmniAsyncError) -> None:
    """Under its kind."""
    if isinstance(error, TransferTimeout):
        counters.timeouts += 1
    elif isinstance(error, KeyNotFound):  # an answer
        counters.misses += 1
    else:
        counters.errors += 1
        counters.transport_faults += isinstance(error, (EngineFault, PeerLost))
        counters.decode_faults += isinstance(error, DecodeError)


async def told(operation: str, where: TransferKey, moving: Coroutine[Any, Any, Moved]) -> Moved:
    """The same, with an event at its beginning and one at its end."""
    with span(_log, operation, edge=where[:2], key=where.key) as events:
        outcome = await moving
        events.note(nbytes=outcome.nbytes)
        return outcome
