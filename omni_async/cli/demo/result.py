"""What a run of the demo found out.

In: figures of the stages, verdicts of the check. Out: a Result, for people or as JSON.
Never: prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from omni_async import EdgeName

from .words import Lag, Passed, Traffic


class Quantiles(msgspec.Struct, frozen=True):
    """Of some values."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        ordered = sorted(values)

        def quantile(share: float) -> float:
            return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0

        return cls(quantile(0.5), quantile(0.99))


class EdgeResult(msgspec.Struct, frozen=True):
    """One edge; times are milliseconds."""

    edge: str
    cargo: str
    connector: str
    sent: int
    received: int
    nbytes: int
    nbytes_per_second: float
    latency_ms_p50: float
    """From a chunk's sending to its receiver having it; guessed inside of a histogram's steps."""
    latency_ms_p99: float
    waited_ms_mean: float
    """How long a chunk has waited for credit or space before it was sent."""

    @classmethod
    def of(
        cls, name: EdgeName, cargo: str, connector: str, sender: Passed, traffic: Traffic
    ) -> EdgeResult:
        t = traffic
        speed = t.nbytes / t.seconds if t.seconds else 0.0
        waited = sender.waited_seconds * 1e3 / max(sender.sent, 1)
        figures = (sender.sent, t.chunks, t.nbytes, speed, t.latency_p50, t.latency_p99, waited)
        return cls(str(name), cargo, connector, *figures)


class StageResult(msgspec.Struct, frozen=True):
    """One stage."""

    stage: str
    name: str
    process: int
    """Counted from 0; stages of one process share its event loop."""
    loop_lag_ms: Lag


class RoundResult(msgspec.Struct, frozen=True):
    """All requests once through the stages."""

    streaming: bool
    seconds: float
    """From the start of the first request to the end of the last one."""
    first_audio_ms: Quantiles
    """From a request's start at the Thinker to its first sound written by Code2Wav."""
    different: list[str]
    """Requests whose file is not what one process computes."""
    edges: list[EdgeResult]
    stages: list[StageResult]

    @property
    def identical(self) -> bool:
        return not self.different

    @property
    def complete(self) -> bool:
        """Every chunk that was sent was received."""
        return all(edge.sent == edge.received for edge in self.edges)

    @property
    def ok(self) -> bool:
        return self.identical and self.complete

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "identical": self.identical, **msgspec.to_builtins(self)}


class Result(msgspec.Struct, frozen=True):
    """All of a run."""

    recording: str
    rate: int
    sound_seconds: float
    requests: int
    snr_db: float | None
    outputs: list[str]
    rounds: list[RoundResult]
    """As the deploy file has it, then without streaming, if that was run for comparison."""
    not_compared: str | None
    """Why it was not."""

    @property
    def ok(self) -> bool:
        return all(round.ok for round in self.rounds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        first, *others = (round.as_dict() for round in self.rounds)
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["rounds"]
        compared = others[0] if others else None
        return {**first, **plain, "ok": self.ok, "without_streaming": compared}
