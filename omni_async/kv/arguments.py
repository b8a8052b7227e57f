"""What callers pass to the ends of KV caches, checked.

In: arguments as they came. Out: the same in one form.
Never: knows a layout's blocks (see plan.check_blocks); keeps anything.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence, Set
from typing import Protocol

from .._aio.deadline import seconds
from ..errors import UsageError
from ..model import Role
from ..transport import Transport
from .names import is_name, told


class Staged(Protocol):
    """An open stage, such as ``open_stage`` yields."""

    @property
    def id(self) -> str: ...

    @property
    def transports(self) -> Mapping[str, Transport]: ...


Carrier = Transport | Staged


def checked_carrier(carrier: Carrier, role: Role) -> Transport:
    """The transport that carries KV caches.

    Raises:
        UsageError: it is none of this role, or a stage that does not have exactly one.
    """
    if isinstance(carrier, Transport):
        if carrier.role != role:
            raise UsageError(
                f"this end needs a transport of role {role!r}, and {carrier!r} has {carrier.role!r}"
            )
        return carrier
    known = getattr(carrier, "transports", None)
    if not isinstance(known, Mapping):
        raise UsageError(f"KV caches travel over a Stage or a Transport, not {carrier!r}")
    fitting = [transport for transport in known.values() if transport.role == role]
    if len(fitting) != 1:
        raise UsageError(
            f"stage {carrier.id} has {len(fitting)} transports of role {role!r} "
            f"({', '.join(known) or 'none at all'}): give the one that carries KV caches, from its transports"
        )
    found: Transport = fitting[0]
    return found


def checked_limit(value: float | None, what: str) -> float:
    """A limit of this end's own, in seconds; infinity for none.

    Args:
        what: the argument's name.

    Raises:
        UsageError: it is none, or 0.
    """
    found = seconds(value, what)
    if found == 0:
        raise UsageError(f"{what} has to be more than 0 seconds, or None for no limit")
    return math.inf if found is None else found


def checked_request(request_id: object) -> str:
    """A name by which both sides know a request.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(request_id, str) or not is_name(request_id):
        raise UsageError(
            "a request is known by a non-empty str of at most 1,024 bytes, the same on both sides (such as "
            f"the router's transfer_id), not {told(request_id)}"
        )
    return request_id


def checked_blocks(block_ids: object) -> list[int]:
    """Numbers of blocks, as far as that can be told without a layout.

    Raises:
        UsageError: they are none.
    """
    try:
        if isinstance(block_ids, (Mapping, Set)):  # they have another order, or none
            raise TypeError
        blocks = list(block_ids)  # type: ignore[call-overload]
        if bool in set(map(type, blocks)):
            raise TypeError
        return [operator.index(block) for block in blocks]
    except TypeError:
        raise UsageError(
            f"blocks are whole numbers, in the order of the tokens, not {told(block_ids)}"
        ) from None


def checked_companions(requests: object) -> dict[str, tuple[str, Sequence[int]]]:
    """Several requests, each with its blocks, by whatever they are to each other.

    Raises:
        UsageError: they are something else.
    """
    pairs = requests.values() if isinstance(requests, Mapping) else [None]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise UsageError(
            f"requests are a mapping of role to (request_id, block_ids), not {told(requests)}"
        )
    return dict(requests)  # type: ignore[call-overload,no-any-return]


def checked_text(text: object) -> str:
    """What can be told to a peer: anything, as text."""
    return str(text).encode(errors="replace").decode()


def checked_layer(layer: object, layers: int) -> int:
    """A layer's number.

    Raises:
        UsageError: there is none such.
    """
    try:
        number = -1 if isinstance(layer, bool) else operator.index(layer)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < layers:
        raise UsageError(f"layers count from 0 to {layers - 1}, not {layer!r}")
    return number
