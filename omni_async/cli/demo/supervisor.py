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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from omni_async import ConfigError, load_deploy

from ..free_ports import FreePorts
from ..servers import Server
from . import words
from .audio import Recording
from .child import Child
from .layout import Layout
from .onto import onto
from .result import Result
from .rounds import Lap, planned
from .served import serving


class Options(NamedTuple):
    """What the user asked for."""

    recording: Path
    deploy: Path
    requests: int
    output: Path
    compare: bool = True
    """Whether the same is run without streaming, too."""
    backend: str | None = None
    """What every edge goes over instead of what the file says."""


class Run:
    """One run, from the check of its input to its result; what it shows is in its fields."""

    def __init__(
        self,
        options: Options,
        changed: Callable[[Run], None],
        ports: FreePorts,
        server: Server | None = None,
    ) -> None:
        """Check what can be checked before anything starts. ``ports`` and ``server`` are closed by the caller.

        Raises:
            ConfigError: the deploy file is wrong, or wires something else than three in a row; nobody
                knows the backend.
            BackendUnavailable: a connector is not there.
            AudioError: the recording cannot be used.
        """
        self.options = options
        deploy, over = load_deploy(options.deploy), {}
        if options.backend is not None:
            over = onto(options.backend, deploy, ports, server)
            deploy = load_deploy(options.deploy, overrides=over)
        self.layout = Layout.of(deploy)
        with Recording(options.recording) as recording:
            self.rate, frames = recording.rate, recording.frames
        self.sound_seconds = frames / self.rate
        name = f"demo-{uuid4().hex[:12]}"
        self.work = options.output.absolute() / f".{name}"
        # Each request starts later in the recording than the one before: a mix-up would be heard.
        skips = [i * frames // (2 * options.requests) for i in range(options.requests)]
        self.rounds, self.not_compared = planned(
            self.layout,
            options.deploy.name,
            [frames - skip for skip in skips],
            options.compare,
            over,
        )
        job = words.Job(
            [],
            str(options.recording.absolute()),
            str(self.work),
            [words.Request(f"req-{i}", skip) for i, skip in enumerate(skips)],
            self.rounds,
            str(options.deploy.absolute()),
            name,
        )
        self.check = Child(job)
        self.processes = [
            Child(words.with_stages(job, stages), [self.layout.name(id) for id in stages])
            for stages in self.layout.processes
        ]
        self.laps: list[Lap] = []
        """Rounds that have begun."""
        self.checking = False
        self._changed = changed
        self._server = server

    async def result(self) -> Result:
        """Run it all. Cancellation: safe; every process is ended and half-written files removed.

        Raises:
            BackendUnavailable: an edge's backend cannot run here; no stage was started.
            DemoFailed: a process ended before it was done.
        """
        await self.layout.check_backends()
        made = not self.options.output.exists()
        try:
            self.work.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                f"{self.options.output}: cannot be written ({error.strerror})"
            ) from error
        try:
            async with serving(self._server):
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
        """The stages together, round by round, then the check, which would take their cores from them."""
        await self.check.rounds[0].ready.wait()
        for number, round in enumerate(self.rounds):
            heard = [child.rounds[number] for child in self.processes]
            for each in heard:
                await each.ready.wait()
            self.laps.append(Lap(round, heard, self.options.requests))
            for child in self.processes:
                child.go()
            for each in heard:
                await each.through.wait()
        await asyncio.gather(*following[: len(self.processes)])
        self.checking = True
        self.check.go()

    def _note(self) -> None:
        if self.laps:
            self.laps[-1].note()
        self._changed(self)

    def _conclude(self) -> Result:
        """Put the files in place and the figures together."""
        verdicts = self.check.verdicts
        outputs = []
        for request in verdicts:
            final = self.options.output / f"{request}.wav"
            os.replace(self.work / self.rounds[0].file(request), final)
            outputs.append(str(final))
        different = [
            [name for name, verdict in verdicts.items() if not verdict.identical[number]]
            for number in range(len(self.rounds))
        ]
        return Result(
            recording=str(self.options.recording),
            rate=self.rate,
            sound_seconds=self.sound_seconds,
            requests=self.options.requests,
            snr_db=next(iter(verdicts.values())).snr,
            outputs=outputs,
            rounds=[
                lap.result(self.layout, names)
                for lap, names in zip(self.laps, different, strict=True)
            ],
            not_compared=self.not_compared,
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
