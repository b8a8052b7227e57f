"""Names: what an edge's key is called in a store, alike at both ends and different from every other.

In: an endpoint, an edge, a key. Out: text.
Never: asks anybody; shortens (a store that has to does so itself).

``{key}@{from}_{to}``, and behind it ``@{namespace}`` unless that is ``default``. A sending stage that has
another rank or replica than 0 is called ``{from}~{rank}~{replica}``. In stages and namespaces the
characters that mean something are escaped, so that the last parts of a name tell what they are whatever
the key is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...model import Endpoint, TransferKey

DEFAULT_NAMESPACE = "default"

Name = Callable[[TransferKey], str]
"""What a key is called."""


def plain(where: TransferKey, separator: str) -> str:
    """As others call it who know neither namespaces nor ranks."""
    return f"{where.key}{separator}{where.from_stage}_{where.to_stage}"


def routed(where: TransferKey, separator: str, namespace: str, rank: int, replica: int) -> str:
    """As this library calls it; ``rank`` and ``replica`` are the sender's."""
    sender = _escaped(where.from_stage, separator)
    if rank or replica:
        sender += f"~{rank}~{replica}"
    text = f"{where.key}{separator}{sender}_{_escaped(where.to_stage, separator)}"
    if namespace != DEFAULT_NAMESPACE:
        # No underscore in it, and always one in the edge: which of the two comes last can be seen.
        text += separator + _escaped(namespace, separator)
    return text


def sending(endpoint: Endpoint, separator: str) -> Name:
    """How a sender calls what it puts."""
    return lambda where: routed(
        where, separator, endpoint.namespace, endpoint.rank, endpoint.replica
    )


class Receiving:
    """How a receiver calls what it gets: after the sender of its own rank, or of another it was told."""

    def __init__(self, endpoint: Endpoint, separator: str) -> None:
        self._endpoint = endpoint
        self._separator = separator
        self._senders: dict[str, tuple[int, int]] = {}

    def expect(self, stage: str, rank: int, replica: int) -> None:
        """That sender of a stage sends to this receiver."""
        self._senders[stage] = rank, replica

    def __call__(self, where: TransferKey) -> str:
        own = self._endpoint
        rank, replica = self._senders.get(where.from_stage, (own.rank, own.replica))
        return routed(where, self._separator, own.namespace, rank, replica)


def _escaped(text: str, separator: str) -> str:
    return re.sub(f"[%_~{re.escape(separator)}]", lambda found: f"%{ord(found[0]):02X}", text)
