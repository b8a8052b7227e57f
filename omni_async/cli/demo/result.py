"""What a run of the demo found out.

In: figures of the stages, verdicts of the check. Out: a Result, for people or as JSON.
Never: prints.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omni_async import EdgeName

from .link import Figures
from .words import Lag


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
    latency_ms_p99: float
    waited_ms_p50: float
    waited_ms_p99: float

    @classmethod
    def of(
        cls, name: EdgeName, cargo: str, connector: str, sent: int, figures: Figures | None
    ) -> EdgeResult:
        f = figures or Figures()
        speed = f.nbytes / f.seconds if f.seconds else 0.0
        waits = (f.latency_p50, f.latency_p99, f.waited_p50, f.waited_p99)
        return cls(str(name), cargo, connector, sent, f.chunks, f.nbytes, speed, *waits)


class StageResult(msgspec.Struct, frozen=True):
    """One stage."""

    stage: str
    name: str
    process: int
    """Counted from 0; stages of one process share its event loop."""
    loop_lag_ms: Lag | None


class Result(msgspec.Struct, frozen=True):
    """All of a run."""

    recording: str
    rate: int
    sound_seconds: float
    requests: int
    seconds: float
    """From the start of the first request to the end of the last one."""
    snr_db: float | None
    different: list[str]
    """Requests whose file is not what one process computes."""
    edges: list[EdgeResult]
    stages: list[StageResult]
    outputs: list[str]

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
        """For JSON."""
        return {"ok": self.ok, "identical": self.identical, **msgspec.to_builtins(self)}
