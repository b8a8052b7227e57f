"""Stages at work in a process: their edges open, all requests in flight at once.

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
from typing import Any, ParamSpec, TypeVar

import anyio

from omni_async import Stage, load_deploy, open_stage

from ..._aio.lag import LagMonitor
from . import dsp, words
from .audio import Recording
from .layout import Layout
from .line import Line
from .link import Outlet, Traffic, inlet
from .stages import Code2Wav, Hidden, Speech, Talker, Thinker

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 8
"""Requests that the Thinker works on at a time; waiting for the others costs nobody anything."""

PROGRESS_SECONDS = 0.1
TICK_SECONDS = 0.005


async def run_stages(line: Line) -> words.Done:
    """Open the stages of this process, work off all requests, close them. Cancellation: ends."""
    job = line.job
    dsp.prepare()
    deploy = load_deploy(job.deploy)
    layout = Layout.of(deploy)
    works: list[Work] = []
    async with contextlib.AsyncExitStack() as stack:
        for id in job.stages:
            stage = await stack.enter_async_context(open_stage(deploy, id, namespace=job.namespace))
            works.append(Work(line, stage, layout))
        await asyncio.to_thread(line.wait_for_go)
        with LagMonitor(TICK_SECONDS) as late:
            async with anyio.create_task_group() as group:
                for work in works:
                    group.start_soon(work.run)
    lag = late.lag()
    return words.Done(
        [work.passed() for work in works],
        words.Lag(lag.p50 * 1e3, lag.p99 * 1e3, lag.max * 1e3),
    )


class Work:
    """What one stage does, with a coroutine for a request at each of the three places."""

    def __init__(self, line: Line, stage: Stage, layout: Layout) -> None:
        self.sent = 0
        self.traffic = Traffic()
        self._line = line
        self._stage = stage
        self._layout = layout
        self._places = asyncio.Semaphore(AT_ONCE)
        # One thread, as a stage has one device.
        self._device = ThreadPoolExecutor(1, thread_name_prefix="device")

    async def run(self) -> None:
        """Work off every request and wait until all that was sent is received.

        Cancellation: ends.
        """
        place = self._layout.stages.index(self._stage.id)
        step = (self.think, self.talk, self.voice)[place]
        async with self._progress(), anyio.create_task_group() as group:
            for request in self._line.job.requests:
                group.start_soon(step, request)
        for edge in self._stage.outputs.values():
            # Leaving would wait for a slower stage too, but not for as long as it takes.
            await edge.transport.drain()

    def passed(self) -> words.Passed:
        """What has gone through."""
        figures = self.traffic.figures() if self.traffic.chunks else None
        return words.Passed(self._stage.id, self.sent, figures)

    async def think(self, request: words.Request) -> None:
        """The first stage: sound to hidden states. Cancellation: ends."""
        outlet = self._outlet(request)
        async with self._places:
            with Recording(Path(self._line.job.recording)) as recording:
                recording.skip(request.skip)
                meta = {"rate": recording.rate, "samples": recording.left}
                thinker, last = Thinker(recording, self._layout.chunkings[0]), False
                while not last:
                    states, last = await self._compute(thinker.step)
                    await outlet.send({"hidden": states, "meta": meta}, last=last)
                    self.sent += 1

    async def talk(self, request: words.Request) -> None:
        """The second stage: hidden states to codes. Cancellation: ends."""
        outlet, talker = self._outlet(request), Talker(self._layout.chunkings[1])
        async for chunk, last in self._inlet(request):
            # No name for the states here: it would keep their memory until the next chunk comes.
            full = await self._compute(talker.step, Hidden(chunk.pop("hidden"), last))
            for speech in full:
                await outlet.send({"codes": speech.codes, "meta": chunk["meta"]}, last=speech.last)
                self.sent += 1

    async def voice(self, request: words.Request) -> None:
        """The third stage: codes to sound in a file. Cancellation: ends."""
        path = Path(self._line.job.work) / f"{request.id}.wav"
        code2wav: Code2Wav | None = None
        async for chunk, last in self._inlet(request):
            code2wav = code2wav or Code2Wav(path, **chunk["meta"])
            await self._compute(code2wav.step, Speech(chunk.pop("codes"), last))
        self._line.say(words.Finished(request.id))

    def _outlet(self, request: words.Request) -> Outlet:
        [edge] = self._stage.outputs.values()
        return Outlet(edge, request.id)

    def _inlet(self, request: words.Request) -> AsyncIterator[tuple[dict[str, Any], bool]]:
        [edge] = self._stage.inputs.values()
        return inlet(edge, request.id, self.traffic)

    @contextlib.asynccontextmanager
    async def _progress(self) -> AsyncIterator[None]:
        """Tell how far the stage is, ten times a second. Cancellation: safe."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                traffic = self.traffic
                self._line.say(
                    words.Progress(self._stage.id, traffic.chunks, self.sent, traffic.nbytes)
                )

        teller = asyncio.create_task(tell())
        try:
            yield
        finally:
            teller.cancel()

    async def _compute(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Arithmetic, off the event loop. Cancellation: unknown."""
        call = functools.partial(step, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._device, call)
