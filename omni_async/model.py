"""Frozen values that every room speaks.

In: nothing. Out: small immutable types.
Never: holds a resource, reaches asyncio, zmq, torch or the clock.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Sequence
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


def batches(moves: Sequence[Move], nbytes: int, most: int = sys.maxsize) -> Iterator[list[Move]]:
    """The moves in order, as batches of a size; smaller are only the last one and such that have ``most`` moves.

    Args:
        nbytes: bytes of a batch; a move that crosses its end is cut there.
        most: moves in a batch.
    """
    batch: list[Move] = []
    room = nbytes
    for move in moves:
        local, region, offset, left = move
        while left > room:
            batch.append(Move(local, region, offset, room))
            local, offset, left = local + room, offset + room, left - room
            yield batch
            batch, room = [], nbytes
        if left:
            batch.append(Move(local, region, offset, left) if left < move.nbytes else move)
            room -= left
            if not room or len(batch) == most:
                yield batch
                batch, room = [], nbytes
    if batch:
        yield batch


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
    """The two ends of a stream know of each other: its writer is held back while its reader is behind,
    and each learns at once that the other has left or is gone. Without it, only the space for what is
    sent holds a writer back, and a stall limit ends a reader whose writer says no more."""
    recall: bool = True
    """An operation in flight can be called back."""
    revoke: bool = False
    """Access of a peer that was lost can be ended, so that its slots are used again at once."""
    writable: bool = True
    """The only reader of a payload may write into what it received."""


class Receipt(msgspec.Struct, frozen=True):
    """What ``put`` returns."""

    nbytes: int
    """Size of the payload, without alignment."""
    metadata: dict[str, Any] | None = None
    """JSON-able handle for a control plane, ``None`` on stores."""


class Spread(msgspec.Struct, frozen=True):
    """How values are spread: a histogram."""

    bounds: tuple[float, ...]
    """Upper bounds of the buckets, each inclusive; the last bucket has none."""
    counts: tuple[int, ...]
    """Values in each bucket, one more than there are bounds."""
    total: float
    """Sum of the values."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """About the value that ``share`` (0 to 1) of all do not exceed; 0 where there is none.

        Between the bounds of its bucket it is guessed on a straight line; what lies above the last
        bound counts as that bound.
        """
        wanted, below, low = share * self.count, 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= wanted:
                return low + (bound - low) * (wanted - below) / count
            below, low = below + count, bound
        return low if below < self.count else 0.0


class StreamHealth(msgspec.Struct, kw_only=True, frozen=True):
    """The streams of one edge, at one of its ends."""

    role: Role
    edge: EdgeName
    opened: int = 0
    """Streams that were begun here."""
    finished: int = 0
    aborted: int = 0
    """Streams that their writer gave up, or that were cleaned up."""
    left: int = 0
    """Streams that their reader left before the end."""
    failures: int = 0
    """Streams that ended by an error."""
    chunks: int = 0
    """Chunks sent by writers here, or handed to readers here."""
    nbytes: int = 0
    """Of these chunks."""
    stalls: int = 0
    """Sends that had to wait for credit; at a reader: streams in which nothing came for too long."""
    stalled_seconds: float = 0.0
    """How long these sends have waited."""
    drops: int = 0
    """Chunks that were sent or received, and that nobody will be handed."""
    queued: int = 0
    """Chunks here now: sent and not under way yet, or arrived and not handed over yet."""
    in_flight: int = 0
    """Chunks under way now: told and not known to be taken, or announced and being fetched."""
    credits: int = 0
    """Chunks that may be sent now, over all open streams."""
    first_chunk_seconds: Spread
    """(reader) From a stream's opening to its first chunk."""
    chunk_seconds: Spread
    """(reader) From a chunk's sending to its reader having it, where both have the same clock."""
    chunk_bytes: Spread

    def flat(self) -> Iterator[tuple[str, int | float]]:
        """Numbers only: of a spread its count, sum, median and 99th percentile."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, Spread):
                yield f"{name}.count", value.count
                yield f"{name}.sum", value.total
                yield f"{name}.p50", value.quantile(0.5)
                yield f"{name}.p99", value.quantile(0.99)
            elif name not in ("role", "edge"):
                yield name, value


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
    misses: int = 0
    transport_faults: int = 0
    decode_faults: int = 0
    in_flight: int = 0
    parked: int = 0
    pool_used: int = 0
    quarantined: int = 0
    streams: dict[str, StreamHealth] = {}
    """By edge, such as ``0->1``, once a stream was opened there."""
    extra: dict[str, Any] = {}
    """Counters and gauges of the backend."""

    def as_dict(self) -> dict[str, Any]:
        """The seed documents' keys plus the gauges, one level deep.

        What concerns the streams of an edge is there by names such as ``stream.0->1.chunks`` and
        ``stream.0->1.chunk_seconds.p99``.
        """
        flat = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("extra", "streams")
        }
        for edge, streams in self.streams.items():
            flat.update({f"stream.{edge}.{name}": value for name, value in streams.flat()})
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
