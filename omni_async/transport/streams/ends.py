"""Why a stream has ended, as the errors that users see.

In: what the rendezvous says of an end, where it happened. Out: errors with their fields.
Never: ends anything.
"""

from __future__ import annotations

from typing import Any

from ...errors import (
    ClosedError,
    KeyNotFound,
    OmniAsyncError,
    PeerLost,
    ProtocolError,
    SequenceGap,
    StreamAborted,
    StreamClosed,
    TransferCancelled,
    TransferError,
)
from ...model import TransferKey
from ...rendezvous.messages import End, Fail, FailCode
from ...rendezvous.outlet import Broken
from ...rendezvous.stream_readers import Gap
from ..link import Link
from ..wiring import Wiring


def named(where: TransferKey) -> str:
    """The stream, for texts."""
    return f"stream {where.key!r} on {where.edge}"


def reader_failure(
    wiring: Wiring, link: Link, where: TransferKey, last: End | Fail | Gap | None
) -> OmniAsyncError:
    """What a reader is told behind the last item that it gets."""
    text = named(where)
    fields = wiring.where(where, link.peer)
    own: dict[str, Any] = {"key": where.key, "edge": where.edge}
    if isinstance(last, End):
        reason = last.reason or "no reason was given"
        return StreamAborted(f"{text} was aborted: {reason}", reason=reason, **own)
    if isinstance(last, Gap):
        told = {"expected": last.expected, "received": last.received}
        return SequenceGap(f"{text}: item {last.expected} is missing", **told, **own)
    if last is None:
        return PeerLost(f"{text}: the sender went away; {link.describe()}", **fields)
    text = f"{text}: {last.text}"
    if last.code is FailCode.CANCELLED:
        return TransferCancelled(text, **fields)
    if last.code is FailCode.EXPIRED:
        return KeyNotFound(text, expired=True, **fields)
    if last.code is FailCode.CLOSED:
        return StreamClosed(text, **own)
    return ProtocolError(text, peer=fields["peer"])


def writer_failure(
    wiring: Wiring, where: TransferKey, why: Broken
) -> StreamClosed | TransferCancelled | ClosedError:
    """What a writer is told that may send no more."""
    text = f"{named(where)}: {why.value}"
    if why is Broken.CLEANED:
        return TransferCancelled(text, **wiring.where(where))
    if why is Broken.CLOSED:
        return ClosedError(text)
    return StreamClosed(text, key=where.key, edge=where.edge)


def of_chunk(error: OmniAsyncError, where: TransferKey, number: int) -> OmniAsyncError:
    """Say whose error it was: those who raised it know no stream."""
    if isinstance(error, TransferError):
        error.key, error.edge = where.key, where.edge
    error.args = (f"chunk {number} of {named(where)}: {error}",)
    return error
