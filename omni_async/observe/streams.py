"""What streams say of themselves: numbers for each edge, events for each stream.

In: one call for a chunk, one for the begin and the end of a stream. Out: ``StreamHealth``, events.
Never: costs a chunk more than some integer additions, keeps anything of a stream that has ended.

===================  =======  ====================================================================
event                level    fields beside ``edge``, ``request`` and ``role``
===================  =======  ====================================================================
stream.open          debug
stream.first_chunk   debug    ``seconds`` since the opening (reader)
stream.finish        debug    ``chunks``, ``seconds`` since the opening
stream.abort         info     the same, and why: ``error``, ``reason``
stream.leave         info     the same, and ``dropped``: chunks that nobody will be handed
stream.fail          warning  ``chunks``, ``seconds``, ``dropped``, ``error``, ``reason``
stream.drop          warning  ``count``, ``reason``: chunks that nobody will be handed
===================  =======  ====================================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from logging import DEBUG
from time import monotonic_ns
from typing import Protocol

from ..errors import OmniAsyncError, StreamAborted, StreamClosed, TransferCancelled
from ..model import EdgeName, Role, Spread, StreamHealth, TransferKey
from .log import get_logger

_log = get_logger("omni_async.streams")

SECONDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Bounds from 50 µs, a chunk's way between two processes of one host, to 60 s."""
BYTES = tuple(1024.0 * 4**n for n in range(10))
"""Bounds from 1 KiB to 256 MiB."""


def _whole(bounds: tuple[float, ...], per_unit: int) -> tuple[int, ...]:
    return tuple(round(bound * per_unit) for bound in bounds)


_NS = _whole(SECONDS, 1_000_000_000)
_BYTES = _whole(BYTES, 1)


class EdgeMeter:
    """Totals of one edge at one end of it."""

    __slots__ = (
        "aborted", "chunk_bytes", "chunk_ns", "chunk_times", "drops", "failures", "finished", "first_ns",
        "first_times", "left", "name", "nbytes", "opened", "role", "stalled_ns", "stalls",
    )  # fmt: skip

    def __init__(self, name: EdgeName, role: Role) -> None:
        self.name = name
        self.role: Role = role
        self.opened = self.finished = self.aborted = self.left = self.failures = 0
        self.nbytes = self.drops = self.stalls = self.stalled_ns = 0
        self.chunk_bytes = [0] * (len(_BYTES) + 1)
        """Chunks by bucket of their bytes."""
        self.chunk_times = [0] * (len(_NS) + 1)
        """Chunks by bucket of their seconds under way, which in all are :attr:`chunk_ns`."""
        self.chunk_ns = 0
        self.first_times = [0] * (len(_NS) + 1)
        self.first_ns = 0

    def open(self, key: str) -> StreamMeter:
        """A stream begins."""
        self.opened += 1
        return StreamMeter(self, key)

    def snapshot(self, queued: int, in_flight: int, credits: int) -> StreamHealth:
        """The totals now, with gauges that others know."""
        return StreamHealth(
            role=self.role,
            edge=self.name,
            opened=self.opened,
            finished=self.finished,
            aborted=self.aborted,
            left=self.left,
            failures=self.failures,
            chunks=sum(self.chunk_bytes),
            nbytes=self.nbytes,
            stalls=self.stalls,
            stalled_seconds=self.stalled_ns / 1e9,
            drops=self.drops,
            queued=queued,
            in_flight=in_flight,
            credits=credits,
            first_chunk_seconds=Spread(SECONDS, tuple(self.first_times), self.first_ns / 1e9),
            chunk_seconds=Spread(SECONDS, tuple(self.chunk_times), self.chunk_ns / 1e9),
            chunk_bytes=Spread(BYTES, tuple(self.chunk_bytes), float(self.nbytes)),
        )


class StreamMeter:
    """One stream at one end of it."""

    __slots__ = ("_began", "_edge", "_first", "_key", "_over")

    def __init__(self, edge: EdgeMeter, key: str) -> None:
        self._edge = edge
        self._key = key
        self._began = monotonic_ns()
        self._first = edge.role == "receiver"
        """Whether a first chunk is waited for."""
        self._over = False
        if _log.enabled(DEBUG):
            _log.debug("stream.open", **self._names)

    @property
    def _names(self) -> dict[str, str]:
        edge = self._edge
        return {"edge": str(edge.name), "request": self._key, "role": edge.role}

    def _seconds(self) -> float:
        return round((monotonic_ns() - self._began) / 1e9, 6)

    def sent(self, nbytes: int) -> None:
        """A chunk was handed over to be sent."""
        edge = self._edge
        edge.nbytes += nbytes
        edge.chunk_bytes[bisect_left(_BYTES, nbytes)] += 1

    def took(self, nbytes: int, at: int = 0) -> None:
        """A reader has a chunk, sent ``at`` nanoseconds of this host's clock; 0 where that is unknown."""
        edge = self._edge
        edge.nbytes += nbytes
        edge.chunk_bytes[bisect_left(_BYTES, nbytes)] += 1
        if at:
            passed = monotonic_ns() - at
            edge.chunk_ns += passed
            edge.chunk_times[bisect_left(_NS, passed)] += 1
        if self._first:
            self._first = False
            passed = monotonic_ns() - self._began
            edge.first_ns += passed
            edge.first_times[bisect_left(_NS, passed)] += 1
            if _log.enabled(DEBUG):
                _log.debug("stream.first_chunk", **self._names, seconds=self._seconds())

    def stalled(self, since: int) -> None:
        """A send has waited for credit since ``since``, nanoseconds of this host's clock."""
        self._edge.stalls += 1
        self._edge.stalled_ns += monotonic_ns() - since

    def dropped(self, count: int, reason: str) -> None:
        """Chunks that nobody will be handed, in a stream that goes on."""
        self._edge.drops += count
        _log.warning("stream.drop", **self._names, count=count, reason=reason)

    def end(self, error: OmniAsyncError | None, chunks: int, *, dropped: int = 0) -> None:
        """The stream is over: finished, or by ``error``. Only the first end counts."""
        if self._over:
            return
        self._over = True
        edge = self._edge
        edge.drops += dropped
        edge.stalls += isinstance(error, TimeoutError)  # nothing came, or nobody took it
        if error is None:
            edge.finished += 1
            if _log.enabled(DEBUG):
                _log.debug("stream.finish", **self._names, chunks=chunks, seconds=self._seconds())
            return
        told = {**self._names, "chunks": chunks, "seconds": self._seconds(), "dropped": dropped}
        told |= {"error": type(error).__name__, "reason": str(error)}
        if isinstance(error, (StreamAborted, TransferCancelled)):
            edge.aborted += 1
            _log.info("stream.abort", **told)
        elif isinstance(error, StreamClosed):
            edge.left += 1
            _log.info("stream.leave", **told)
        else:
            edge.failures += 1
            _log.warning("stream.fail", **told)

    def leave(self, chunks: int, *, dropped: int = 0) -> None:
        """A reader has left; without effect after the end."""
        if not self._over:
            self._over = True
            self._edge.left += 1
            self._edge.drops += dropped
            seconds = self._seconds()
            _log.info(
                "stream.leave", **self._names, chunks=chunks, seconds=seconds, dropped=dropped
            )


class Flowing(Protocol):
    """One open stream, as far as gauges need it."""

    @property
    def queued(self) -> int: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def credits(self) -> int: ...


class StreamMeters:
    """All edges of one transport."""

    def __init__(self, role: Role) -> None:
        self._role: Role = role
        self._edges: dict[EdgeName, EdgeMeter] = {}

    def edge(self, name: EdgeName) -> EdgeMeter:
        """The meter of an edge, a new one for a new edge."""
        meter = self._edges.get(name)
        if meter is None:
            meter = self._edges[name] = EdgeMeter(name, self._role)
        return meter

    def snapshot(self, flowing: Iterable[tuple[TransferKey, Flowing]]) -> dict[str, StreamHealth]:
        """By edge; ``flowing`` are all open streams."""
        gauges = {name: [0, 0, 0] for name in self._edges}
        for where, stream in flowing:
            gauge = gauges[where.edge]
            gauge[0] += stream.queued
            gauge[1] += stream.in_flight
            gauge[2] += stream.credits
        return {str(name): self._edges[name].snapshot(*gauge) for name, gauge in gauges.items()}
