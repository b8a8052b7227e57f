"""A stage at work: its edges open, all requests in flight at once.

In: a job. Out: chunks to the next stage or files, and figures at the end.
Never: computes in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import anyio

from omni_async import Stage, load_deploy, open_stage

from ..._aio.lag import LagMonitor
from . import dsp, words
from .audio import Recording
from .line import Line
from .link import Outlet, Traffic, inlet
from .stages import Code2Wav, Hidden, Speech, Talker, Thinker

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 8
"""Requests that the Thinker works on at a time; waiting for the others costs nobody anything."""

PROGRESS_SECONDS = 0.1
TICK_SECONDS = 0.005


async def run_stage(line: Line) -> words.Done:
    """Open the stage, work off its requests, close it. Cancellation: ends."""
    job = line.job
    dsp.prepare()
    async with open_stage(load_deploy(job.deploy), job.role, namespace=job.namespace) as stage:
        await asyncio.to_thread(line.wait_for_go)
        work = Work(line, stage)
        step = {"0": work.think, "1": work.talk, "2": work.voice}[job.role]
        with LagMonitor(TICK_SECONDS) as late:
            async with work.progress(), anyio.create_task_group() as group:
                for request in job.requests:
                    group.start_soon(step, request)
            for edge in stage.outputs.values():
                # Leaving would wait for a slower stage too, but not for as long as it takes.
                await edge.transport.drain()
    figures = work.traffic.figures() if work.traffic.chunks else None
    lag = late.lag()
    return words.Done(work.sent, figures, words.Lag(lag.p50 * 1e3, lag.p99 * 1e3, lag.max * 1e3))


class Work:
    """What a stage does for a request, one coroutine for each of the three stages."""

    def __init__(self, line: Line, stage: Stage) -> None:
        self.sent = 0
        self.traffic = Traffic()
        self._line = line
        self._stage = stage
        self._places = asyncio.Semaphore(AT_ONCE)
        # One thread, as a stage has one device.
        self._device = ThreadPoolExecutor(1, thread_name_prefix="device")

    async def think(self, request: words.Request) -> None:
        """Stage 0: sound to hidden states. Cancellation: ends."""
        outlet = Outlet(self._stage.output("1"), request.id)
        async with self._places:
            with Recording(Path(self._line.job.recording)) as recording:
                recording.skip(request.skip)
                meta = {"rate": recording.rate, "samples": recording.left}
                thinker, last = Thinker(recording), False
                while not last:
                    states, last = await self._compute(thinker.step)
                    await outlet.send({"hidden": states, "meta": meta}, last=last)
                    self.sent += 1

    async def talk(self, request: words.Request) -> None:
        """Stage 1: hidden states to codes. Cancellation: ends."""
        outlet, talker = Outlet(self._stage.output("2"), request.id), Talker()
        async for chunk, last in inlet(self._stage.input("0"), request.id, self.traffic):
            codes, _ = await self._compute(talker.step, Hidden(chunk.pop("hidden"), last))
            await outlet.send({"codes": codes, "meta": chunk["meta"]}, last=last)
            self.sent += 1

    async def voice(self, request: words.Request) -> None:
        """Stage 2: codes to sound in a file. Cancellation: ends."""
        path = Path(self._line.job.work) / f"{request.id}.wav"
        code2wav: Code2Wav | None = None
        async for chunk, last in inlet(self._stage.input("1"), request.id, self.traffic):
            code2wav = code2wav or Code2Wav(path, **chunk["meta"])
            await self._compute(code2wav.step, Speech(chunk.pop("codes"), last))
        self._line.say(words.Finished(request.id))

    @contextlib.asynccontextmanager
    async def progress(self) -> AsyncIterator[None]:
        """Tell how far the stage is, ten times a second. Cancellation: safe."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                self._line.say(words.Progress(self.traffic.chunks, self.sent, self.traffic.nbytes))

        teller = asyncio.create_task(tell())
        try:
            yield
        finally:
            teller.cancel()

    async def _compute(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Arithmetic, off the event loop. Cancellation: unknown."""
        call = functools.partial(step, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._device, call)
