"""Handshake: does the peer speak this wire and belong to this pipeline.

In: both sides' ``Hello``, or the first bytes of a peer. Out: the peer's ``Hello`` or why not.
Never: touches a socket or the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..errors import ProtocolError
from .framing import UNDECODABLE
from .messages import WIRE, Bye, Hello, decode

if TYPE_CHECKING:
    from .messages import AnyMessage

_HELLO_TAG = 1


class Disagreement(ProtocolError):
    """The peer is there, and the two will never talk: it says so, or this side can tell."""


def disagreement(mine: Hello, theirs: Hello) -> str | None:
    """Why the two cannot talk, in words that are right on both sides; ``None`` when they can."""
    if mine.wire != theirs.wire:
        return _versions(mine.role, mine.wire, theirs.wire)
    for what in ("namespace", "backend", "verb", "protocol"):
        ours, other = getattr(mine, what), getattr(theirs, what)
        if ours != other:
            return f"{what} differs: the {mine.role} has {ours!r}, the {theirs.role} has {other!r}"
    if mine.role == theirs.role:
        return f"both sides are a {mine.role}"
    return None


def first_word(body: memoryview, role: str) -> Hello:
    """The peer's ``Hello`` from the first frame.

    Args:
        body: the frame's bytes.
        role: this side's role, for the text.

    Raises:
        ProtocolError: another wire version, a refusal, or no ``Hello`` at all.
    """
    try:
        word: AnyMessage = decode(body)
    except UNDECODABLE as error:
        version = _foreign_version(body)
        if version is not None:
            raise Disagreement(_versions(role, WIRE, version)) from error
        raise ProtocolError(f"its first {len(body)} bytes are not a word of this wire") from error
    if type(word) is Hello:
        return word
    if type(word) is Bye:
        raise Disagreement(f"it refused: {word.reason or 'no reason given'}")
    raise ProtocolError(f"its first word is {type(word).__name__}, not Hello")


def _versions(role: str, mine: int, theirs: int) -> str:
    other = "receiver" if role == "sender" else "sender"
    return f"wire version differs: the {role} speaks {mine}, the {other} speaks {theirs}"


def _foreign_version(body: memoryview) -> int | None:
    """The wire number of a ``Hello`` whose other fields are of another wire."""
    try:
        fields = msgspec.msgpack.decode(body)
    except UNDECODABLE:
        return None
    if isinstance(fields, list) and len(fields) > 1 and fields[0] == _HELLO_TAG:
        version = fields[1]
        return version if type(version) is int and version != WIRE else None
    return None
