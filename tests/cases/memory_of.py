"""Reach into the shared memory of another process, as a hostile or broken one would.

In: a process id and a text that stands in a payload's header. Out: a window over the bytes around it.
Never: goes through the library.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

REACH = 4096
"""Bytes before and after the text that the window shows."""


@contextmanager
def header_of(pid: int, text: bytes) -> Iterator[tuple[mmap.mmap, int]]:
    """The segment that holds ``text``, and where the text stands in it.

    Raises:
        LookupError: no memfd of that process holds it.
    """
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if not os.readlink(path).startswith("/memfd:"):
                continue
            with open(path, "r+b") as file:
                segment = mmap.mmap(file.fileno(), 0)
        except (OSError, ValueError):  # closed meanwhile, or empty
            continue
        place = segment.find(text)
        if place >= 0:
            try:
                yield segment, place
            finally:
                segment.close()
            return
        segment.close()
    raise LookupError(f"{text!r} is in no shared memory of process {pid}")
