"""What the doctor and the process of one backend say to each other, and what both tell.

In: nothing. Out: frozen values, as JSON.
Never: looks at anything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...abc import Finding
from ...model import Role


class Question(msgspec.Struct, frozen=True):
    """Whether a transport with these options can be opened here."""

    role: Role
    options: dict[str, Any]


class Job(msgspec.Struct, frozen=True):
    """All that one process is asked, of one backend."""

    backend: str
    root: str
    questions: tuple[Question, ...]
    limit: float
    """Seconds after which nobody waits any more."""


class Told(msgspec.Struct, frozen=True):
    """A finding and whom it is about."""

    about: str
    finding: Finding


HOST = "host"


encode_job = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
encode_findings = msgspec.json.Encoder().encode
decode_findings = msgspec.json.Decoder(list[Finding]).decode
