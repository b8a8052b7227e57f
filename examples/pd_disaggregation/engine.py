"""Requests at one instance: which blocks they have, and when these are free again.

In: a prompt, what its proxy says about it. Out: tokens; at prefill, what to answer the proxy.
Never: frees a block that a rank here, or another instance, may still read or write.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from omni_async.errors import OmniAsyncError

from .cache import Blocks
from .line import RankFailed
from .rank import Ranks, noticed


@dataclass
class Request:
    """One completion."""

    tokens: list[int]
    count: int
    """How many to say."""
    params: Mapping[str, Any] | None = None
    """``kv_transfer_params``."""
    request_id: str = ""
    answer: dict[str, Any] | None = None
    """``kv_transfer_params`` to answer."""

    @property
    def prefills(self) -> bool:
        """Another instance goes on with it."""
        return bool(self.params and self.params.get("do_remote_decode"))

    @property
    def decodes(self) -> bool:
        """Another instance has begun it."""
        return bool(self.params and self.params.get("do_remote_prefill"))


class Engine:
    """Many requests at once; each token of each is a turn of the model."""

    def __init__(self, ranks: Ranks, blocks: Blocks, block_size: int) -> None:
        self.blocks = blocks
        self.ranks = ranks
        self.counts = {"requests": 0, "given": 0, "taken": 0, "failed": 0}
        self.last_failure: str | None = None
        self._block_size = block_size
        self._numbers = itertools.count()
        self._door = asyncio.Lock()
        self._endings: set[asyncio.Task[None]] = set()

    async def complete(self, request: Request) -> AsyncGenerator[tuple[int, float], None]:
        """Tokens with their logprobs, as they are computed.

        Raises:
            OmniAsyncError, RankFailed: the cache has not come, or could not be given away.
            ValueError: it is too long for this instance.
        """
        prompt, number = request.tokens, next(self._numbers)
        self.counts["requests"] += 1
        if request.params is not None and not (request.prefills or request.decodes):
            request.params = None
        more = 0 if request.prefills else request.count
        blocks = await self.blocks.take(self._needed(len(prompt) + more))
        do, problem = self.ranks.do, "its client has gone"
        done = False
        try:
            await self._turn()
            if request.prefills:
                await do("give", number, request.params, request.request_id, blocks, len(prompt))
                said = (await do("forward", number, prompt, 0, blocks))[0]
                request.answer = (await do("seal", number))[0]
                self.counts["given"] += 1
                done = True
                yield said
                return
            at = 0
            if request.decodes:
                held = blocks[: self._needed(len(prompt))]
                await do("take", number, request.params, request.request_id, held)
                await do("whole", number)
                self.counts["taken"] += 1
                at = len(prompt) - 1  # what follows the prompt is not in its cache
            rest = prompt[at:]
            for _ in range(request.count):
                token, logprob = (await do("forward", number, rest, at, blocks))[0]
                yield token, logprob
                at, rest = at + len(rest), [token]
            done = True
        except (OmniAsyncError, RankFailed) as error:
            problem = str(error)
            raise
        finally:
            self._later(self._end(number, blocks, None if done else problem))

    def refuse(self, request: Request, reason: str) -> None:
        """It will not be done here, so that no other instance need keep anything, or wait."""
        if request.prefills or request.decodes:
            self._later(self._decline(request, reason))

    async def aclose(self) -> None:
        """Wait for the last block."""
        while self._endings:
            await asyncio.wait(set(self._endings))

    async def _turn(self) -> None:
        """However many come at once, one begins in a turn of the loop: what else it has to do is not late."""
        async with self._door:
            await asyncio.sleep(0)

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    async def _end(self, number: int, blocks: list[int], problem: str | None) -> None:
        if problem is not None:
            await self.ranks.do("give_up", number, problem)
        problems = [problem, *(await self.ranks.do("settled", number))]
        found = next(filter(None, problems), None)
        if found is not None:
            self.counts["failed"] += 1
            self.last_failure = found
            print(f"request {number}: {found}", file=sys.stderr, flush=True)
        self.blocks.give(blocks)

    async def _decline(self, request: Request, reason: str) -> None:
        await self.ranks.do("decline", request.params, request.request_id, reason)

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        task.add_done_callback(noticed)
