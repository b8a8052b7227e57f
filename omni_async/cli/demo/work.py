"""A stage at work: the adapter of its streams, its device, and what it tells the demo.

In: what a part computes. Out: chunks of all requests to the part, outputs of it to the next stage.
Never: knows what is in a chunk, computes in the event loop, cuts chunks: that is what processors do.

Streaming or not is one decision, in :meth:`Work.hand_over`: an output goes out as soon as it is made, or
is kept until its request is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from omni_async import ChunkReady, ChunkTransferAdapter, Edge, Stage, StreamFailed, StreamFinished
from omni_async.model import StreamHealth
from omni_async.stream import Processor

from . import words
from .causes import began_elsewhere
from .line import Line
from .rounds import AT_ONCE

P = ParamSpec("P")
T = TypeVar("T")

PROGRESS_SECONDS = 0.1
CAUSE_SECONDS = 2.0
"""How long a stage that heard of a failure elsewhere leaves it to the other one to tell."""


class Work:
    """One stage in one round."""

    def __init__(
        self, line: Line, round: words.Round, stage: Stage, processor: Processor | None
    ) -> None:
        self.line = line
        self.job = line.job
        self.round = round
        self._stage = stage
        self._adapter = ChunkTransferAdapter(stage, processor=processor, max_active=AT_ONCE)
        self._kept: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        """Outputs of each request, while streaming is off."""
        self._waited = 0.0
        self._began = self._latest = 0.0
        # One thread, as a stage has one device.
        self._device = ThreadPoolExecutor(1, thread_name_prefix="device")

    async def run(self, part: Callable[[Work], Awaitable[None]]) -> None:
        """Work off every request and wait until all that was sent is received.

        Cancellation: ends.
        """
        self._began = self._latest = perf_counter()
        try:
            async with self._progress(), _told_by_its_cause(), self._adapter:
                await part(self)
        finally:
            self._device.shutdown(wait=False)
        for edge in self._stage.outputs.values():
            # Leaving would wait for a slower stage too, but not for as long as it takes.
            await edge.transport.drain()

    async def compute(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Arithmetic, off the event loop. Cancellation: unknown."""
        call = functools.partial(step, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._device, call)

    # --- streams ----------------------------------------------------------------------------------

    async def chunks(self) -> AsyncIterator[tuple[str, dict[str, Any] | None]]:
        """Each request's chunks, and ``None`` at its end; all requests at once. Cancellation: safe.

        A chunk's tensors lie in memory of the sender. Whoever takes them out of the chunk (``pop``) and
        is done with them when it asks for the next one gives that memory back in time.

        Raises:
            OmniAsyncError: why a request failed.
        """
        left = len(self.job.requests)
        for request in self.job.requests:
            self._adapter.register(request.id)
        async for event in self._adapter.events():
            if isinstance(event, StreamFailed):
                raise event.error
            if isinstance(event, ChunkReady):
                self._latest = perf_counter()
                yield event.request_id, event.chunk
            elif isinstance(event, StreamFinished):
                yield event.request_id, None
                left -= 1
                if not left:
                    return

    async def hand_over(self, request: str, output: Mapping[str, Any]) -> None:
        """Give an output to the next stage, now or at the end. Cancellation: unknown."""
        if self._stage.plan.async_chunk:
            await self._send(request, output)
        else:
            self._kept[request].append(output)

    async def finish(self, request: str) -> None:
        """Nothing follows. Cancellation: unknown."""
        for output in self._kept.pop(request, ()):
            await self._send(request, output)
        await self._send(request, None, finished=True)

    async def _send(
        self, request: str, output: Mapping[str, Any] | None, *, finished: bool = False
    ) -> None:
        began = perf_counter()
        await self._adapter.send(request, output, finished=finished)
        self._waited += perf_counter() - began

    # --- figures ----------------------------------------------------------------------------------

    def passed(self) -> words.Passed:
        """What has gone through."""
        traffic, received = words.Traffic(), self._received()
        if received is not None:
            latency = received.chunk_seconds
            traffic = words.Traffic(
                received.chunks,
                received.nbytes,
                self._latest - self._began,
                latency.quantile(0.5) * 1e3,
                latency.quantile(0.99) * 1e3,
            )
        return words.Passed(self._stage.id, self._sent(), self._waited, traffic)

    def _received(self) -> StreamHealth | None:
        return _streams(next(iter(self._stage.inputs.values()), None))

    def _sent(self) -> int:
        streams = _streams(next(iter(self._stage.outputs.values()), None))
        return 0 if streams is None else streams.chunks

    @contextlib.asynccontextmanager
    async def _progress(self) -> AsyncIterator[None]:
        """Tell how far the stage is, ten times a second. Cancellation: safe."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                streams, id = self._received(), self._stage.id
                received = (0, 0) if streams is None else (streams.chunks, streams.nbytes)
                self.line.say(words.Progress(id, received[0], self._sent(), received[1]))

        teller = asyncio.create_task(tell())
        try:
            yield
        finally:
            teller.cancel()


def _streams(edge: Edge | None) -> StreamHealth | None:
    """What an edge says of its streams, once there is one."""
    return None if edge is None else edge.transport.health().streams.get(str(edge.name))


@contextlib.asynccontextmanager
async def _told_by_its_cause() -> AsyncIterator[None]:
    """Let the stage that failed first say why, which ends the demo. Cancellation: safe."""
    try:
        yield
    except Exception as error:
        if began_elsewhere(error):
            await asyncio.sleep(CAUSE_SECONDS)
        raise
