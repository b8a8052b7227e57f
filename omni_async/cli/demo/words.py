"""What the demo and its processes say to each other: one JSON object a line.

In: structs. Out: lines.
Never: imports torch, so that the demo's own process stays small.

The demo writes a :class:`Job` and, when all are ready, ``go`` into a process's standard input and
keeps it open: its end tells the process that the demo is gone. The process answers with events.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .link import Figures


class Request(msgspec.Struct, frozen=True):
    """One request: the recording from some point on."""

    id: str
    skip: int
    """Frames of the recording that it leaves out, so that no two requests are alike."""


class Job(msgspec.Struct, frozen=True):
    """All that a process is told."""

    stages: list[str]
    """Ids of the stages that live in it; none in the one that checks."""
    recording: str
    work: str
    """Folder for the files of this run; belongs to the run alone."""
    requests: list[Request]
    deploy: str = ""
    """Path of the deploy file."""
    namespace: str = ""


def with_stages(job: Job, stages: Iterable[str]) -> Job:
    """The same job for another process."""
    return msgspec.structs.replace(job, stages=list(stages))


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Open and waiting for ``go``."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a stage is."""

    stage: str
    received: int = 0
    """Chunks."""
    sent: int = 0
    nbytes: int = 0
    """Received."""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A request left the pipeline, or was checked."""

    request: str
    identical: bool = True
    snr: float | None = None
    """Decibels by which the recording is stronger than what the pipeline changed in it."""


class Passed(msgspec.Struct, frozen=True):
    """What has gone through a stage."""

    stage: str
    sent: int
    """Chunks."""
    traffic: Figures | None
    """What it received; the first stage receives nothing."""


class Lag(msgspec.Struct, frozen=True):
    """By how many milliseconds an event loop was late."""

    p50: float
    p99: float
    worst: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The process has closed everything and ends."""

    stages: list[Passed] = []
    lag: Lag | None = None
    """Of its event loop."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The process ends by an error."""

    error: str


Event = Ready | Progress | Finished | Done | Failed

encode = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
decode_event = msgspec.json.Decoder(Event).decode
