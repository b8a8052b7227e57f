"""One rank of an instance: its share of the model, its caches, its part in transfers.

In: what the first rank says, in its order. Out: tokens; word of each cache that has come or gone.
Never: serves HTTP, decides which blocks a request has, frees one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from omni_async._aio.lag import LagMonitor
from omni_async.errors import OmniAsyncError
from omni_async.kv.instance import KVInstance
from omni_async.kv.prefill import Prefill
from omni_async.kv.progress import KVProgress

from .cache import PagedCache
from .line import Calls, Work
from .model import Model, Said


class _Request:
    """What this rank has to do with one request."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        """It is known what there is to do, or that there is nothing."""
        self.given_up: str | None = None
        self.computing: asyncio.Future[Said] | None = None
        """The last of its computations; they are done in turn."""
        self.giving: Prefill | None = None
        self.taking: KVProgress | None = None

    def give_up(self, reason: str) -> None:
        self.given_up = reason
        if self.giving is not None:
            self.giving.abort(reason)
        if self.taking is not None:
            self.taking.cancel(reason)


class Rank:
    """All of its works are called at every rank of the instance with the same arguments.

    Each request has a number. ``forward`` begins in the same order everywhere: ranks wait for each other
    while they compute.
    """

    def __init__(self, instance: KVInstance, model: Model, cache: PagedCache) -> None:
        self._instance = instance
        self._model = model
        self._cache = cache
        self._thread = ThreadPoolExecutor(1, "model")
        self._requests: dict[int, _Request] = {}
        self._gaps: dict[str, LagMonitor] = {}
        self.works: Mapping[str, Work] = {
            "give": self.give,
            "forward": self.forward,
            "seal": self.seal,
            "take": self.take,
            "whole": self.whole,
            "decline": self.decline,
            "give_up": self.give_up,
            "settled": self.settled,
            "gaps": self.gaps,
        }

    # --- prefill ----------------------------------------------------------------------------------

    async def give(
        self,
        number: int,
        params: dict[str, Any] | None,
        request_id: str,
        blocks: list[int],
        tokens: int,
    ) -> None:
        """Another instance gets this request's cache: it is told of each layer that is computed from here on."""
        with self._beginning(number) as request:
            request.giving = await self._instance.prefill(
                params, request_id, block_ids=blocks, tokens=tokens
            )

    async def seal(self, number: int) -> dict[str, Any] | None:
        """What is answered as ``kv_transfer_params``."""
        job = self._requests[number].giving
        return None if job is None else await job.seal()

    # --- decode -----------------------------------------------------------------------------------

    async def take(
        self, number: int, params: dict[str, Any] | None, request_id: str, blocks: list[int]
    ) -> None:
        """Ask for another instance's cache in these blocks."""
        with self._beginning(number) as request:
            request.taking = await self._instance.decode(params, request_id, block_ids=blocks)

    async def whole(self, number: int) -> None:
        """All of it is there."""
        progress = self._requests[number].taking
        assert progress is not None  # the params were those of such a request
        await progress.all()

    # --- both -------------------------------------------------------------------------------------

    async def decline(self, params: dict[str, Any], request_id: str, reason: str) -> None:
        """Nothing will be done here for this request."""
        if params.get("do_remote_decode"):
            job = await self._instance.prefill(params, request_id)
            if job is not None:
                job.abort(reason)
        else:
            await self._instance.decline(params, request_id, reason=reason)

    async def forward(
        self, number: int, tokens: list[int], at: int, blocks: list[int]
    ) -> tuple[int, float]:
        """Compute tokens of a request, the first of which is its ``at``-th. The next one, and its logprob."""
        if number not in self._requests:  # no other instance has part in it
            with self._beginning(number):
                pass
        request = self._requests[number]
        layer_done = _nothing if request.giving is None else request.giving.layer_ready
        sequence = self._cache.sequence(blocks)
        computed = self._thread.submit(self._model.forward, tokens, at, sequence, layer_done)
        # Once begun everywhere it has to be done everywhere, whoever has stopped waiting for it.
        request.computing = asyncio.wrap_future(computed)
        request.computing.add_done_callback(noticed)
        said = await asyncio.shield(request.computing)
        return said.token, said.logprob

    async def give_up(self, number: int, reason: str) -> None:
        """Whoever has or wants the cache is told."""
        if number in self._requests:
            self._requests[number].give_up(reason)

    async def settled(self, number: int) -> str | None:
        """Wait until nobody reads or writes its blocks any more; what went wrong."""
        request = self._requests.get(number)
        if request is None:
            return None
        problem = None
        try:
            await request.begun.wait()
            if request.computing is not None:
                await asyncio.wait([request.computing])
            if request.giving is not None and request.giving.session is not None:
                try:
                    await request.giving.delivered()
                except OmniAsyncError as error:
                    problem = f"{type(error).__name__}: {error}"
            if request.taking is not None:
                await request.taking.released()
        finally:
            del self._requests[number]
        return problem

    async def gaps(self, phase: str | None) -> dict[str, list[float]]:
        """By how many milliseconds ticks of 1 ms came late in each phase: count, median, p99.9, worst.

        From here on those of this phase are counted, or none.
        """
        for monitor in self._gaps.values():
            monitor.stop()
        if phase is not None:
            self._gaps.setdefault(phase, LagMonitor()).start()
        lags = {name: monitor.lag() for name, monitor in self._gaps.items()}
        return {
            name: [lag.ticks, lag.p50 * 1e3, lag.p999 * 1e3, lag.max * 1e3]
            for name, lag in lags.items()
        }

    def close(self) -> None:
        for monitor in self._gaps.values():
            monitor.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @contextlib.contextmanager
    def _beginning(self, number: int) -> Iterator[_Request]:
        request = self._requests[number] = _Request()
        try:
            yield request
        finally:
            request.begun.set()
            if request.given_up is not None:  # meanwhile
                request.give_up(request.given_up)


def _nothing(layer: int) -> None:
    pass


def noticed(future: asyncio.Future[Any]) -> None:
    """Its error was seen, also where nobody waits for it."""
    if not future.cancelled():
        future.exception()


class Ranks:
    """(first rank) All ranks as one."""

    def __init__(self, own: Rank, others: Sequence[Calls]) -> None:
        self._own = own
        self._others = others

    async def do(self, name: str, *arguments: Any) -> list[Any]:
        """What each has answered, the first rank first. All begin in the order of these calls.

        Raises:
            RankFailed: one could not; what the others do goes on.
            OmniAsyncError: this one could not.

        Cancellation: safe; what they do goes on.
        """
        work = asyncio.ensure_future(self._own.works[name](*arguments))
        works = [work, *(other.call(name, arguments) for other in self._others)]
        for each in works:
            each.add_done_callback(noticed)
        return list(await asyncio.gather(*(asyncio.shield(each) for each in works)))
