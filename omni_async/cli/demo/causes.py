"""What an error is about.

In: an exception. Out: the one inside that began it, whether it began elsewhere.
Never: swallows one.
"""

from __future__ import annotations

from omni_async import PeerLost, StreamAborted, StreamClosed

_ELSEWHERE = (PeerLost, StreamAborted, StreamClosed)


def innermost(error: BaseException) -> BaseException:
    """What a task group's error is about."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    return error


def began_elsewhere(error: BaseException) -> bool:
    """Whether the stage at the other end of an edge knows more of it."""
    return isinstance(innermost(error), _ELSEWHERE)
