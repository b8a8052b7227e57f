"""One process of the demo as the demo sees it.

In: a job. Out: what the process has said so far.
Never: outlives the demo, takes Ctrl-C for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence

from omni_async import OmniAsyncError

from . import words

_ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM")
}


class DemoFailed(OmniAsyncError):
    """A process of the demo ended before its job was done."""


class Heard:
    """What a process has said of one round."""

    def __init__(self, stages: Iterable[str]) -> None:
        self.ready = asyncio.Event()
        self.progress = {id: words.Progress(id) for id in stages}
        self.finished: dict[str, words.Finished] = {}
        self.through = asyncio.Event()
        self.result: words.Through | None = None


class Child:
    """One process of the demo and what it has said so far."""

    def __init__(self, job: words.Job, parts: Sequence[str] = ()) -> None:
        """``parts`` are what its stages are called."""
        self.job = job
        named = list(zip(job.stages, parts, strict=True))
        stages = ", ".join(f"{id} ({part})" for id, part in named)
        several = f"the process of stages {stages}" if len(named) > 1 else f"stage {stages}"
        self.name = several if named else "the check"
        self._label = "+".join(f"{id}-{part}" for id, part in named) or "check"
        self.rounds = [Heard(job.stages) for _ in job.rounds]
        self.verdicts: dict[str, words.Verdict] = {}
        self._through = 0
        self._done = False
        self._failed: words.Failed | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process and hand it its job. Cancellation: unknown; :meth:`end` ends it."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", f"{__package__}.process", self._label),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,  # Ctrl-C reaches the demo alone, which ends all at once
        )
        self._order(words.encode(self.job))

    async def follow(self, changed: Callable[[], None]) -> None:
        """Read its events until it ends. Cancellation: safe.

        Raises:
            DemoFailed: it ended before it was done.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._hear(words.decode_event(line))
            changed()
        status = await self._process.wait()
        if status != 0 or not self._done:
            raise DemoFailed(f"{self.name} {self._fate(status)}")

    def go(self) -> None:
        """Begin the round it is ready for."""
        self._order(b"go")

    async def end(self) -> None:
        """Kill it if it still runs, and reap it. Cancellation: unknown."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _hear(self, event: words.Event) -> None:
        if isinstance(event, words.Verdict):
            self.verdicts[event.request] = event
        elif isinstance(event, words.Done):
            self._done = True
        elif isinstance(event, words.Failed):
            self._failed = event
        else:
            self._hear_of(self.rounds[self._through], event)

    def _hear_of(
        self, round: Heard, event: words.Ready | words.Progress | words.Finished | words.Through
    ) -> None:
        if isinstance(event, words.Ready):
            round.ready.set()
        elif isinstance(event, words.Progress):
            round.progress[event.stage] = event
        elif isinstance(event, words.Finished):
            round.finished[event.request] = event
        else:
            round.result = event
            round.through.set()
            self._through += 1

    def _order(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    def _fate(self, status: int) -> str:
        if self._failed is not None:
            return f"failed: {self._failed.error}"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status} before it was done"
