"""The report: lines for people, one object for machines.

In: what was told. Out: text.
Never: prints, judges.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from ...abc import Finding
from .words import HOST, Told

_LEAST_WIDTH = 40
_MARKS = {"ok": "ok", "warning": "warning", "fault": "FAULT"}


def settled(told: Iterable[tuple[Told, bool]], order: Sequence[str] = ()) -> list[Told]:
    """Each finding once, those of the host under the host, in the order of what they are about.

    Args:
        told: findings, and whether anybody wants what they are about: what is only missing for a
            backend that nobody wants is a warning.
        order: what comes first, behind the host; the rest follows as it was told.
    """
    worst: dict[tuple[str, str, str], Told] = {}
    for one, asked in told:
        finding = one.finding
        if finding.absent and not asked and finding.status == "fault":
            finding = _lowered(finding)
        about = HOST if finding.of_host else one.about
        key = (about, finding.subject, finding.seen)
        known = worst.get(key)
        if known is None or _rank(finding) > _rank(known.finding):
            worst[key] = Told(about, finding)
    sections = list(dict.fromkeys([HOST, *order, *(one.about for one in worst.values())]))
    return sorted(worst.values(), key=lambda one: sections.index(one.about))


def count(told: Sequence[Told], status: str) -> int:
    """Findings of a status."""
    return sum(one.finding.status == status for one in told)


def as_object(told: Sequence[Told], deploy: str | None) -> dict[str, Any]:
    """For a machine."""
    return {
        "ok": count(told, "fault") == 0,
        "deploy": deploy,
        "faults": count(told, "fault"),
        "warnings": count(told, "warning"),
        "findings": [
            {
                "about": one.about,
                "status": one.finding.status,
                "subject": one.finding.subject,
                "seen": one.finding.seen,
                "remedy": one.finding.remedy or None,
            }
            for one in told
        ],
    }


def as_lines(told: Sequence[Told], width: int) -> list[str]:
    """For people."""
    lines: list[str] = []
    about = None
    for one in told:
        if one.about != about:
            lines += ["", one.about] if lines else [one.about]
            about = one.about
        finding = one.finding
        lines += _wrapped(
            f"  {_MARKS[finding.status]:<8}", f"{finding.subject}: {finding.seen}", width
        )
        if finding.remedy:
            lines += _wrapped("          -> ", finding.remedy, width)
    numbers = [
        f"{number} {word}{'' if number == 1 else 's'}"
        for word, status in (("fault", "fault"), ("warning", "warning"))
        if (number := count(told, status))
    ]
    return [*lines, "", ", ".join([*numbers, f"{count(told, 'ok')} ok"])]


def _wrapped(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, _LEAST_WIDTH),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lowered(finding: Finding) -> Finding:
    return Finding(
        status="warning",
        subject=finding.subject,
        seen=finding.seen,
        remedy=finding.remedy,
        absent=True,
        of_host=finding.of_host,
    )


def _rank(finding: Finding) -> int:
    return ("ok", "warning", "fault").index(finding.status)
