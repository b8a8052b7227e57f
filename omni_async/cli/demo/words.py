"""What the demo and its processes say to each other: one JSON object a line.

In: structs. Out: lines.
Never: imports torch, so that the demo's own process stays small.

The demo writes a :class:`Job` into a process's standard input and keeps it open: its end tells the
process that the demo is gone. For each round it writes ``go`` when all are ready. The process answers
with events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Request(msgspec.Struct, frozen=True):
    """One request: the recording from some point on."""

    id: str
    skip: int
    """Frames of the recording that it leaves out, so that no two requests are alike."""


class Round(msgspec.Struct, frozen=True):
    """All requests once through the stages."""

    name: str
    overrides: dict[str, Any] = {}
    """What lies over the deploy file."""

    def file(self, request: str) -> str:
        """The sound that it made of a request, inside of the work folder."""
        return f"{request}.{self.name}.wav"


class Job(msgspec.Struct, frozen=True):
    """All that a process is told."""

    stages: list[str]
    """Ids of the stages that live in it; none in the one that checks."""
    recording: str
    work: str
    """Folder for the files of this run; belongs to the run alone."""
    requests: list[Request]
    rounds: list[Round]
    deploy: str = ""
    """Path of the deploy file."""
    namespace: str = ""


def with_stages(job: Job, stages: Iterable[str]) -> Job:
    """The same job for another process."""
    return msgspec.structs.replace(job, stages=list(stages))


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Open for the next round and waiting for ``go``."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a stage is."""

    stage: str
    received: int = 0
    """Chunks."""
    sent: int = 0
    nbytes: int = 0
    """Received."""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A request left the pipeline."""

    request: str
    first_audio_ms: float
    """From its start at the Thinker to the first sound written."""


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """A request was checked."""

    request: str
    identical: list[bool]
    """Of each round."""
    snr: float | None = None
    """Decibels by which the recording is stronger than what the pipeline changed in it."""


class Traffic(msgspec.Struct, frozen=True):
    """What the streams of an edge say at its receiver; times are milliseconds."""

    chunks: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    """From the start to the last chunk."""
    latency_p50: float = 0.0
    latency_p99: float = 0.0


class Passed(msgspec.Struct, frozen=True):
    """What has gone through a stage."""

    stage: str
    sent: int
    """Chunks."""
    waited_seconds: float
    """How long its requests have waited until what they handed over had left, all together."""
    received: Traffic


class Lag(msgspec.Struct, frozen=True):
    """By how many milliseconds an event loop was late."""

    p50: float
    p99: float
    worst: float


class Through(msgspec.Struct, frozen=True, tag="through"):
    """A round is over, and everything of it closed."""

    stages: list[Passed]
    lag: Lag
    """Of the event loop."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The process ends; there is nothing left to do."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The process ends by an error."""

    error: str


Event = Ready | Progress | Finished | Verdict | Through | Done | Failed

encode = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
decode_event = msgspec.json.Decoder(Event).decode
