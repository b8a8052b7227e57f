"""Chunks of a request over one edge, and what the edge's traffic looked like.

In: dicts. Out: the same dicts in the next process, in order, and figures.
Never: knows what is in a chunk.

The end of a request rides in its last chunk: a message of its own could be lost or overtake it.
Both clocks below are ``perf_counter_ns``, which is one clock for all processes of a host.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from time import perf_counter_ns
from typing import Any

import msgspec

from omni_async import Edge


class Figures(msgspec.Struct, frozen=True):
    """An edge's traffic as its receiver saw it; times are milliseconds."""

    chunks: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    """From the first chunk's put to the last one's arrival."""
    latency_p50: float = 0.0
    latency_p99: float = 0.0
    waited_p50: float = 0.0
    waited_p99: float = 0.0


class Traffic:
    """Counts what comes in over an edge.

    ``latency`` runs from the moment both ends were there - the chunk put and the receiver asking -
    until its tensors are usable. What a chunk lay ready before anybody asked is ``waited``.
    """

    def __init__(self) -> None:
        self.chunks = 0
        self.nbytes = 0
        self._latency = array("q")
        self._waited = array("q")
        self._began = 0
        self._ended = 0

    def note(self, nbytes: int, put: int, asked: int, usable: int) -> None:
        self.chunks += 1
        self.nbytes += nbytes
        self._latency.append(usable - max(put, asked))
        self._waited.append(max(asked - put, 0))
        self._began = min(self._began or put, put)
        self._ended = usable

    def figures(self) -> Figures:
        latency, waited = sorted(self._latency), sorted(self._waited)
        return Figures(
            self.chunks,
            self.nbytes,
            (self._ended - self._began) / 1e9,
            quantile(latency, 0.5) / 1e6,
            quantile(latency, 0.99) / 1e6,
            quantile(waited, 0.5) / 1e6,
            quantile(waited, 0.99) / 1e6,
        )


def quantile(ordered: list[int] | list[float], q: float) -> float:
    """The value that a share ``q`` of ``ordered`` does not exceed; 0 when there is none."""
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class Outlet:
    """Sends one request's chunks."""

    def __init__(self, edge: Edge, request: str) -> None:
        self._edge = edge
        self._request = request
        self._number = 0

    async def send(self, chunk: dict[str, Any], *, last: bool) -> None:
        """Send the next chunk; ``last`` ends the request. Cancellation: unknown."""
        envelope = {"chunk": chunk, "last": last, "put": perf_counter_ns()}
        key = _key(self._request, self._edge, self._number)
        self._number += 1
        await self._edge.put(key, envelope, request_id=self._request, timeout=None)


async def inlet(
    edge: Edge, request: str, traffic: Traffic
) -> AsyncIterator[tuple[dict[str, Any], bool]]:
    """One request's chunks, each with whether it is the last. Cancellation: safe.

    A chunk's tensors lie in memory of the sender. Whoever takes them out of the chunk (``pop``) and
    is done with them when it asks for the next one gives that memory back in time.
    """
    last, number = False, 0
    while not last:
        asked = perf_counter_ns()
        # Requests behind others wait for as long as those take; a dead stage ends the whole demo.
        delivery = await edge.get(_key(request, edge, number), timeout=None)
        envelope = delivery.value
        traffic.note(delivery.nbytes, envelope["put"], asked, perf_counter_ns())
        last, number = envelope["last"], number + 1
        yield envelope["chunk"], last
        delivery.release()


def _key(request: str, edge: Edge, number: int) -> str:
    return f"{request}_{edge.name.from_stage}_{number}"
