"""Other people's tools, asked what they see.

In: a command. Out: what it printed, within a time limit; ``None`` where there is no such tool.
Never: goes through a shell, raises for what a tool does, waits longer than it was told.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import NamedTuple

from ...abc import Sight

LIMIT = 5.0
"""Seconds that one tool may take."""


class Answer(NamedTuple):
    """What a tool printed."""

    text: str
    errors: str
    trouble: str | None
    """Why it cannot be believed; ``None`` where it ended well."""


def asked(sight: Sight, tool: str, *arguments: str, limit: float = LIMIT) -> Answer | None:
    """Run a tool that ``PATH`` has; blocks for ``limit`` seconds at most."""
    found = shutil.which(tool, path=sight.environ.get("PATH"))
    if found is None:
        return None
    told = " ".join((tool, *arguments))
    try:
        ended = subprocess.run(
            [found, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            check=False,
            env={**sight.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Answer("", "", f"{told} does not end within {limit:g} s")
    except OSError as error:
        return Answer("", "", f"{told} cannot be run ({error.strerror})")
    text, errors = (part.decode(errors="replace") for part in (ended.stdout, ended.stderr))
    trouble = None
    if ended.returncode:
        lines = (errors or text).strip().splitlines()
        trouble = f"{told} ended with status {ended.returncode}" + (
            f": {lines[-1]}" if lines else ""
        )
    return Answer(text, errors, trouble)
