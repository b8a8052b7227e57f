"""Descriptors of this process, for tests that count them.

In: nothing. Out: each with what it refers to, but for sockets of a client that looks for a killed master.
Never: counts the descriptor by which it looks.
"""

from __future__ import annotations

import contextlib
import os

from tests.lost_masters import lookers


def open_descriptors() -> dict[str, str]:
    """Number → what it refers to."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one by which the folder was read
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    lost = lookers(found.values())
    return {number: name for number, name in found.items() if name not in lost}
