"""What the demo and its processes say to each other: one JSON object a line.

In: structs. Out: lines.
Never: imports torch, so that the demo's own process stays small.

The demo writes a :class:`Job` and, when all are ready, ``go`` into a process's standard input and
keeps it open: its end tells the process that the demo is gone. The process answers with events.
"""

from __future__ import annotations

import msgspec

from .link import Figures

CHECK = "check"


class Request(msgspec.Struct, frozen=True):
    """One request: the recording from some point on."""

    id: str
    skip: int
    """Frames of the recording that it leaves out, so that no two requests are alike."""


class Job(msgspec.Struct, frozen=True):
    """All that a process is told."""

    role: str
    """A stage's id, or :data:`CHECK`."""
    recording: str
    work: str
    """Folder for the files of this run; belongs to the run alone."""
    requests: list[Request]
    deploy: str = ""
    """Path of the deploy file."""
    namespace: str = ""


def as_role(job: Job, role: str) -> Job:
    """The same job for another process."""
    return msgspec.structs.replace(job, role=role)


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Open and waiting for ``go``."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """So far."""

    received: int
    """Chunks."""
    sent: int
    nbytes: int
    """Received."""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A request left the pipeline, or was checked."""

    request: str
    identical: bool = True
    snr: float | None = None
    """Decibels by which the recording is stronger than what the pipeline changed in it."""


class Lag(msgspec.Struct, frozen=True):
    """By how many milliseconds an event loop was late."""

    p50: float
    p99: float
    worst: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The process has closed everything and ends."""

    sent: int = 0
    """Chunks."""
    traffic: Figures | None = None
    lag: Lag | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The process ends by an error."""

    error: str


Event = Ready | Progress | Finished | Done | Failed

encode = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
decode_event = msgspec.json.Decoder(Event).decode
