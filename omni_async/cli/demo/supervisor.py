"""The demo's own process: starts the others, follows them, ends them.

In: a recording and a deploy file. Out: WAV files and a Result.
Never: computes or moves a chunk, leaves a process or a half-written file behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from uuid import uuid4

from omni_async import ConfigError, OmniAsyncError, load_deploy

from . import words
from .audio import Recording
from .layout import CARGO, Layout
from .result import EdgeResult, Result, StageResult

_ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM")
}


class Options(NamedTuple):
    """What the user asked for."""

    recording: Path
    deploy: Path
    requests: int
    output: Path


class DemoFailed(OmniAsyncError):
    """A process of the demo ended before its job was done."""


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
        self.progress = {id: words.Progress(id) for id in job.stages}
        self.finished: dict[str, words.Finished] = {}
        self.done: words.Done | None = None
        self.ready = asyncio.Event()
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
            event = words.decode_event(line)
            if isinstance(event, words.Ready):
                self.ready.set()
            elif isinstance(event, words.Progress):
                self.progress[event.stage] = event
            elif isinstance(event, words.Finished):
                self.finished[event.request] = event
            elif isinstance(event, words.Done):
                self.done = event
            else:
                self._failed = event
            changed()
        status = await self._process.wait()
        if status != 0 or self.done is None:
            raise DemoFailed(f"{self.name} {self._fate(status)}")

    def go(self) -> None:
        self._order(b"go")

    async def end(self) -> None:
        """Kill it if it still runs, and reap it. Cancellation: unknown."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

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


class Run:
    """One run, from the check of its input to its result; what it shows is in its fields."""

    def __init__(self, options: Options, changed: Callable[[Run], None]) -> None:
        """Check what can be checked before anything starts.

        Raises:
            ConfigError: the deploy file is wrong, or wires something else than three in a row.
            BackendUnavailable: it names a connector that is not there.
            AudioError: the recording cannot be used.
        """
        self.options = options
        self.deploy = load_deploy(options.deploy)
        self.layout = Layout.of(self.deploy)
        with Recording(options.recording) as recording:
            self.rate, frames = recording.rate, recording.frames
        self.sound_seconds = frames / self.rate
        name = f"demo-{uuid4().hex[:12]}"
        self.work = options.output.absolute() / f".{name}"
        # Each request starts later in the recording than the one before: a mix-up would be heard.
        requests = [
            words.Request(f"req-{i}", i * frames // (2 * options.requests))
            for i in range(options.requests)
        ]
        job = words.Job(
            [],
            str(options.recording.absolute()),
            str(self.work),
            requests,
            str(options.deploy.absolute()),
            name,
        )
        self.check = Child(job)
        self.processes = [
            Child(words.with_stages(job, stages), [self.layout.name(id) for id in stages])
            for stages in self.layout.processes
        ]
        self.began = 0.0
        self.seconds = 0.0
        self._changed = changed

    async def result(self) -> Result:
        """Run it all. Cancellation: safe; every process is ended and half-written files removed."""
        made = not self.options.output.exists()
        try:
            self.work.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                f"{self.options.output}: cannot be written ({error.strerror})"
            ) from error
        try:
            await self._supervise()
            return self._conclude()
        finally:
            shutil.rmtree(self.work, ignore_errors=True)
            if made:
                with contextlib.suppress(OSError):  # there are files in it now
                    self.options.output.rmdir()

    async def _supervise(self) -> None:
        children = [*self.processes, self.check]
        async with _ended(children):
            for child in children:
                await child.start()
            following = [asyncio.create_task(child.follow(self._note)) for child in children]
            conducting = asyncio.create_task(self._conduct(following))
            try:
                await asyncio.gather(conducting, *following)
            finally:
                for task in (conducting, *following):
                    task.cancel()

    async def _conduct(self, following: Sequence[asyncio.Task[None]]) -> None:
        """The stages together, then the check, which would take their cores from them."""
        for child in (*self.processes, self.check):
            await child.ready.wait()
        self.began = perf_counter()
        for child in self.processes:
            child.go()
        await asyncio.gather(*following[: len(self.processes)])
        self.check.go()

    @property
    def finished(self) -> dict[str, words.Finished]:
        """Requests that have left the last stage."""
        return self.processes[-1].finished

    @property
    def progress(self) -> list[words.Progress]:
        """Of each stage, in their order."""
        return [progress for child in self.processes for progress in child.progress.values()]

    def _note(self) -> None:
        if not self.seconds and len(self.finished) == self.options.requests:
            self.seconds = perf_counter() - self.began
        self._changed(self)

    def _conclude(self) -> Result:
        """Put the files in place and the figures together."""
        verdicts = self.check.finished
        outputs = []
        for request in verdicts:
            final = self.options.output / f"{request}.wav"
            os.replace(self.work / f"{request}.wav", final)
            outputs.append(str(final))
        done = [child.done or words.Done() for child in self.processes]
        passed = {stage.stage: stage for process in done for stage in process.stages}
        return Result(
            recording=str(self.options.recording),
            rate=self.rate,
            sound_seconds=self.sound_seconds,
            requests=self.options.requests,
            seconds=self.seconds,
            snr_db=next(iter(verdicts.values())).snr,
            different=[name for name, verdict in verdicts.items() if not verdict.identical],
            edges=[
                EdgeResult.of(
                    wire.name,
                    cargo,
                    wire.receiver.name,
                    passed[wire.name.from_stage].sent,
                    passed[wire.name.to_stage].traffic,
                )
                for wire, cargo in zip(self.layout.wires, CARGO, strict=True)
            ],
            stages=[
                StageResult(stage.stage, self.layout.name(stage.stage), number, process.lag)
                for number, process in enumerate(done)
                for stage in process.stages
            ],
            outputs=outputs,
        )


@contextlib.asynccontextmanager
async def _ended(children: Sequence[Child]) -> AsyncIterator[None]:
    """None of them lives longer than the block."""
    try:
        yield
    finally:
        await asyncio.shield(asyncio.gather(*(child.end() for child in children)))


@contextlib.contextmanager
def cancelled_by_signals() -> Iterator[Callable[[], int | None]]:
    """Ctrl-C and SIGTERM cancel the running task; gives a function that tells which came."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    came: list[int] = []

    def cancel(number: int) -> None:
        came.append(number)
        assert task is not None
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield lambda: came[0] if came else None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
