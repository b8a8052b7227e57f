"""Why a transfer has failed: as an error here, as a word on a line.

In: errors, reasons. Out: the one for the other.
Never: tells a caller that a peer was lost where its own side was closed.
"""

from __future__ import annotations

from ..errors import (
    ClosedError,
    EngineFault,
    OmniAsyncError,
    PeerLost,
    ProtocolError,
    TransferCancelled,
    TransferTimeout,
)
from .words import Reason


def reason_of(error: OmniAsyncError) -> Reason:
    """What an error of this side is called in a word."""
    kinds: tuple[tuple[type[OmniAsyncError], Reason], ...] = (
        (EngineFault, Reason.ENGINE),
        (TransferTimeout, Reason.TIMEOUT),
        (ProtocolError, Reason.REFUSED),
        (ClosedError, Reason.CLOSED),
    )
    return next((reason for kind, reason in kinds if isinstance(error, kind)), Reason.ABORTED)


def error_of(reason: Reason, text: str, request_id: str, peer: str | None = None) -> OmniAsyncError:
    """What a reason means to a caller on either side."""
    if reason is Reason.ENGINE:
        return EngineFault(text, key=request_id, peer=peer)
    if reason is Reason.TIMEOUT:
        return TransferTimeout(text, key=request_id, peer=peer)
    if reason is Reason.REFUSED:
        return ProtocolError(text, peer=peer)
    if reason is Reason.CLOSED:
        return PeerLost(text, key=request_id, peer=peer)
    return TransferCancelled(text, key=request_id, peer=peer)


def own_error(request_id: str, reason: Reason, text: str) -> OmniAsyncError:
    """What it means to this side's own caller: no peer was lost where this end was closed."""
    mine = Reason.ABORTED if reason is Reason.CLOSED else reason
    return error_of(mine, named(request_id, text), request_id)


def named(request_id: str, text: str) -> str:
    """With the request's name in front, once."""
    name = f"request {request_id!r}"
    return text if text.startswith(name) else f"{name}: {text}"


def unnamed(request_id: str, error: OmniAsyncError) -> str:
    """An error's text without the request's name in front, for whoever knows what it is about."""
    return str(error).removeprefix(f"request {request_id!r}: ")
