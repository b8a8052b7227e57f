"""Findings: what was seen on this machine, and what to do about it.

In: nothing. Out: frozen values, and where to look.
Never: judges, knows a vendor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import BackendUnavailable, ConfigError

Status = Literal["ok", "warning", "fault"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``omni-async doctor``."""

    status: Status
    subject: str
    """What was looked at, in a word or two: ``package``, ``RDMA ports``."""
    seen: str
    remedy: str = ""
    """What to do about it; a warning or a fault always has one."""
    absent: bool = False
    """The machine does not have it, which is a fault only for who asked for it."""
    of_host: bool = False
    """It holds for the host whatever looked: several backends that see the same are told once."""


def ok(subject: str, seen: str, *, of_host: bool = False) -> Finding:
    """All is well."""
    return Finding(status="ok", subject=subject, seen=seen, of_host=of_host)


def warning(subject: str, seen: str, remedy: str, *, of_host: bool = False) -> Finding:
    """It works, and something about it may not be wanted."""
    return Finding(status="warning", subject=subject, seen=seen, remedy=remedy, of_host=of_host)


def fault(
    subject: str, seen: str, remedy: str, *, absent: bool = False, of_host: bool = False
) -> Finding:
    """It does not work."""
    return Finding(
        status="fault", subject=subject, seen=seen, remedy=remedy, absent=absent, of_host=of_host
    )


def of_error(error: BackendUnavailable | ConfigError) -> Finding:
    """What an opening would have raised."""
    if isinstance(error, BackendUnavailable):
        remedy = error.remedy or "see the backend's page"
        return fault("opening", str(error), remedy, absent=True)
    subject = error.path or "options"
    return fault(subject, str(error), f"correct {error.path or 'the options'}")


@dataclass(frozen=True)
class Sight:
    """Where an examination looks."""

    root: Path = Path("/")
    """Below which ``/dev``, ``/proc`` and ``/sys`` are read."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Variables; tools are found by its ``PATH``."""

    @property
    def here(self) -> bool:
        """Whether it is this host as this process has it: only then something can be tried out."""
        return self.root == Path("/")

    def text(self, path: str) -> str:
        """A small file below the root; empty where it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""
