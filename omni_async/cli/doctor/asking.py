"""Backends looked at side by side, each in a process that may hang or die.

In: jobs. Out: findings, those of a process that did not get through included.
Never: waits longer than the limit, leaves a process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping

import msgspec

from ...abc import Finding
from ...abc.findings import fault
from .words import Job, decode_findings, encode_job

AT_ONCE = 4
_LAST_WORDS = 300


class Asking:
    """Asks backends; at most :data:`AT_ONCE` of them at a time."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)

    async def findings(self, job: Job) -> list[Finding]:
        """All that a backend tells of all questions. Cancellation: safe; its process is killed."""
        async with self._room:
            return await _asked(job)


async def _asked(job: Job) -> list[Finding]:
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", f"{__package__}.process", job.backend),
            stdin=asyncio.subprocess.PIPE,
            stdout=answers,
            stderr=errors,
            env=_environment(os.environ),
            start_new_session=True,  # ended as a whole, with the tools that it runs
        )
        status: int | None = None
        try:
            status = await asyncio.wait_for(_through(process, encode_job(job)), job.limit)
        except (TimeoutError, asyncio.TimeoutError):
            pass
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        answers.seek(0)
        told = [one for line in answers.read().splitlines() for one in _decoded(line)]
        if status == 0:
            return told
        errors.seek(0)
        return [*told, _fate(status, job.limit, errors.read())]


async def _through(process: asyncio.subprocess.Process, job: bytes) -> int:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its status tells why
        process.stdin.write(job)
        await process.stdin.drain()
    process.stdin.close()
    return await process.wait()


def _decoded(line: bytes) -> list[Finding]:
    try:
        return decode_findings(line)
    except msgspec.DecodeError:  # it died while it wrote
        return []


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours, and that modules are found where this process finds them."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _fate(status: int | None, limit: float, errors: bytes) -> Finding:
    again = (
        "see whether the vendor's package and its driver fit this host; install the package again"
    )
    if status is None or status == -signal.SIGALRM:
        return fault("examination", f"was not through after {limit:g} s, and was ended", again)
    lines = errors.decode(errors="replace").strip().splitlines()
    words = f"; it wrote: {lines[-1][-_LAST_WORDS:]}" if lines else ""
    if status < 0:
        name = signal.Signals(-status).name
        return fault("examination", f"the vendor's code ended its process by {name}{words}", again)
    return fault("examination", f"its process ended with status {status}{words}", again)
