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

from ...model import Endpoint, Role, TransferKey

DEFAULT_NAMESPACE = "default"


def plain(where: TransferKey, separator: str) -> str:
    """As others call it who know neither namespaces nor ranks."""
    return f"{where.key}{separator}{where.from_stage}_{where.to_stage}"


def suffix(
    from_stage: str, to_stage: str, separator: str, namespace: str, rank: int, replica: int
) -> str:
    """What stands behind the keys of an edge; ``rank`` and ``replica`` are the sender's."""
    sender = _escaped(from_stage, separator)
    if rank or replica:
        sender += f"~{rank}~{replica}"
    text = f"{separator}{sender}_{_escaped(to_stage, separator)}"
    if namespace != DEFAULT_NAMESPACE:
        # No underscore in it, and always one in the edge: which of the two comes last can be seen.
        text += separator + _escaped(namespace, separator)
    return text


class Names:
    """How one end calls its keys."""

    def __init__(self, endpoint: Endpoint, role: Role, separator: str) -> None:
        self._endpoint = endpoint
        self._role = role
        self._separator = separator
        self._senders: dict[str, tuple[int, int]] = {}
        self._suffixes: dict[tuple[str, str], str] = {}

    def expect(self, stage: str, rank: int, replica: int) -> None:
        """(receiver) That sender of a stage sends to it; else the one of its own rank and replica."""
        self._senders[stage] = rank, replica
        self._suffixes.clear()

    def __call__(self, where: TransferKey) -> str:
        edge = where[0], where[1]
        behind = self._suffixes.get(edge)
        if behind is None:
            own = self._endpoint
            at = own.rank, own.replica
            if self._role == "receiver":
                at = self._senders.get(where.from_stage, at)
            behind = suffix(*edge, self._separator, own.namespace, *at)
            self._suffixes[edge] = behind
        return where.key + behind


def _escaped(text: str, separator: str) -> str:
    return re.sub(f"[%_~{re.escape(separator)}]", lambda found: f"%{ord(found[0]):02X}", text)
