"""Frozen values that every room speaks.

In: nothing. Out: small immutable types.
Never: holds a resource, reaches asyncio, zmq, torch or the clock.
"""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple

import msgspec

Role = Literal["sender", "receiver"]

ALIGNMENT = 64
"""Bytes; every buffer inside a payload starts on such a boundary."""

KEY_LIMIT = 1024
"""Bytes of UTF-8 a key may have."""


class EdgeName(NamedTuple):
    """One arrow of the pipeline."""

    from_stage: str
    to_stage: str

    def __str__(self) -> str:
        return f"{self.from_stage}->{self.to_stage}"


class TransferKey(NamedTuple):
    """What a payload is filed under: an edge and the caller's key."""

    from_stage: str
    to_stage: str
    key: str

    @property
    def edge(self) -> EdgeName:
        return EdgeName(self.from_stage, self.to_stage)


class Endpoint(NamedTuple):
    """Who somebody is: one transport of one stage."""

    namespace: str
    stage: str
    rank: int
    replica: int

    def __str__(self) -> str:
        return f"{self.namespace}/stage {self.stage}/rank {self.rank}/replica {self.replica}"


class Verb(enum.Enum):
    """How an engine moves bytes."""

    MAP = "map"
    """The receiver maps the sender's memory."""
    WRITE = "write"
    """The sender writes into the receiver's slot."""
    READ = "read"
    """The receiver reads from the sender's slot."""
    STORE = "store"
    """A store keeps the bytes under the key."""


class Region(NamedTuple):
    """Registered memory of this process: what a peer must know to reach it."""

    id: int
    address: int
    nbytes: int
    descriptor: bytes
    """Opaque bytes of the vendor."""
    fd: int
    """Descriptor to pass along, or -1."""


class Place(NamedTuple):
    """Bytes inside a region. A place of an older generation names nothing."""

    region: int
    offset: int
    nbytes: int
    generation: int


class Move(NamedTuple):
    """One piece of a transfer: local address, the peer's region id and offset, bytes."""

    local: int
    region: int
    offset: int
    nbytes: int


class ConnectorSpec(msgspec.Struct, frozen=True):
    """Which backend, and its options: what a deploy YAML calls a connector."""

    name: str
    extra: dict[str, Any] = {}


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a transport that do not change while it is open."""

    backend: str
    verb: Verb
    raw_data: bool = True
    """Tensors and bytes travel without a serializer."""
    cross_host: bool = False
    device_memory: bool = False
    notifies: bool = True
    """A waiting get is woken; nobody asks again and again."""
    exclusive: bool = True
    """With one consumer, exactly one get succeeds."""
    credit: bool = True
    """A stream's writer learns when its reader is behind."""
    recall: bool = True
    """An operation in flight can be called back."""
    revoke: bool = False
    """Unregistering a region proves that remote access has ended."""
    writable: bool = True
    """The only reader of a payload may write into what it received."""


class Receipt(msgspec.Struct, frozen=True):
    """What ``put`` returns."""

    nbytes: int
    """Size of the payload, without alignment."""
    metadata: dict[str, Any] | None = None
    """JSON-able handle for a control plane, ``None`` on stores."""


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """A snapshot; :meth:`as_dict` is flat."""

    status: str
    backend: str
    host: str | None = None
    pool_device: str | None = None
    pool_size: int = 0
    puts: int = 0
    gets: int = 0
    bytes_transferred: int = 0
    errors: int = 0
    timeouts: int = 0
    in_flight: int = 0
    parked: int = 0
    pool_used: int = 0
    quarantined: int = 0
    extra: dict[str, Any] = {}
    """Counters and gauges of the backend."""

    def as_dict(self) -> dict[str, Any]:
        """The seed documents' keys plus the gauges, one level deep."""
        flat = {name: getattr(self, name) for name in self.__struct_fields__ if name != "extra"}
        return {**self.extra, **flat}


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """``nbytes`` rounded up to a multiple of ``alignment``."""
    return -(-nbytes // alignment) * alignment


def packed(sizes: list[int]) -> tuple[list[int], int]:
    """Offsets of frames laid one after another on :data:`ALIGNMENT` boundaries, and the total."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end
