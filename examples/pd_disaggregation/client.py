"""A client of completions that knows what the answers have to be.

In: a router's URL, prompts. Out: answers, and whether each token is the one that a single process says.
Never: tries again what has failed; takes an answer for right because it is like another one.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

import aiohttp

from .model import Model, Said, alone, encode

TOLERANCE = 1e-9
"""Of logprobs, which tell of every wrong bit in a cache. Rows are multiplied one by one or many at once, so that
the last bits of a product differ."""
_WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "prefill",
    "and",
    "decode",
    "read",
    "far",
    "travelled",
    "blocks",
)


class Wanted(NamedTuple):
    """A prompt and what follows it."""

    prompt: str
    said: list[Said]


class Answer(NamedTuple):
    """What came."""

    status: int
    tokens: list[int]
    logprobs: list[float]
    text: str
    first_seconds: float
    """Until the first token; of a whole answer, until all of it."""
    seconds: float
    streamed: bool

    def is_right(self, wanted: Wanted) -> bool:
        return (
            self.status == 200
            and self.tokens == [said.token for said in wanted.said]
            and all(
                abs(here - said.logprob) < TOLERANCE
                for here, said in zip(self.logprobs, wanted.said, strict=True)
            )
        )


def prompts(count: int, seed: int = 1) -> list[str]:
    """Of 1 to 150 bytes; some end with a block, some begin alike."""
    chosen = random.Random(seed)
    made = []
    for number in range(count):
        text = " ".join(chosen.choices(_WORDS, k=chosen.randint(1, 26)))
        made.append(f"{number % 7} {text}"[: chosen.choice([16, 32, 33, 150, 150, 150])])
    return made


def computed(texts: Sequence[str], count: int) -> list[Wanted]:
    """What a single process says, without a cache. Blocks."""
    model = Model()
    return [Wanted(text, alone(model, encode(text), count)) for text in texts]


class Client:
    """Use as an asynchronous context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
        )

    async def ready(self, timeout: float = 60.0) -> None:
        """Until the router has heard of a pair and an answer came.

        Raises:
            TimeoutError: it has not.
        """
        limit = time.monotonic() + timeout
        while (answer := await self.complete("ready?", 1)).status != 200:
            if time.monotonic() > limit:
                raise TimeoutError(f"no completion within {timeout:g} s: {answer}")
            await asyncio.sleep(0.05)

    async def complete(self, prompt: str, count: int, *, stream: bool = False) -> Answer:
        """One completion. Cancellation: safe; the router is told by the connection's end.

        Raises:
            aiohttp.ClientError: nobody answers, or no more.
        """
        body = {"model": "m", "prompt": prompt, "max_tokens": count, "stream": stream}
        begin = time.perf_counter()
        async with self.session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                return Answer(response.status, [], [], await response.text(), 0.0, 0.0, stream)
            chunks, first = [], 0.0
            if stream:
                async for line in response.content:
                    data = line.decode().removeprefix("data: ").strip()
                    first = first or time.perf_counter() - begin
                    if data and data != "[DONE]":
                        chunks.append(json.loads(data))
            else:
                chunks.append(await response.json())
        seconds = time.perf_counter() - begin
        choices = [chunk["choices"][0] for chunk in chunks]
        return Answer(
            200,
            [token for choice in choices for token in choice["token_ids"]],
            [logprob for choice in choices for logprob in choice["token_logprobs"]],
            "".join(choice["text"] for choice in choices),
            first or seconds,
            seconds,
            stream,
        )

    async def ask(self, url: str, body: dict[str, Any] | None = None) -> Any:
        """Something of an instance."""
        method = "GET" if body is None else "POST"
        async with self.session.request(method, url, json=body) as response:
            return await response.json()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.session.close()
