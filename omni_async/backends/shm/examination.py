"""What the doctor is told of shared memory.

In: the folder for sockets, if there is one. Out: findings.
Never: leaves anything behind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from ...abc import Finding
from ...abc.findings import fault, ok

_LONGEST = 80
"""Bytes that the folder's name may have: a socket's path has 107, and the shortest name of one takes 27."""


def findings(socket_dir: str | None) -> Iterator[Finding]:
    """Whether memory can be shared, and sockets be made in the folder."""
    yield _memory()
    if socket_dir is not None:
        yield _folder(socket_dir)


def _memory() -> Finding:
    try:
        descriptor = os.memfd_create("omni-async-doctor", os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as error:
        return fault(
            "memory",
            f"memfd_create is refused ({error})",
            "run on Linux from 3.17 on, without a sandbox",
        )
    os.close(descriptor)
    return ok("memory", "memfd segments, passed from process to process; /dev/shm is not used")


def _folder(path: str) -> Finding:
    remedy = f"make it, and let this user write there: mkdir -p {path}"
    if len(os.fsencode(os.path.abspath(path))) > _LONGEST:
        return fault("socket_dir", f"{path} is too long for names of sockets", "use a shorter path")
    try:
        with tempfile.TemporaryFile(dir=path):
            return ok("socket_dir", f"{path} can be written to")
    except OSError as error:
        return fault("socket_dir", f"no socket can be made in {path} ({error.strerror})", remedy)
