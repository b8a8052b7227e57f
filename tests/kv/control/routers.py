"""The real vllm-router, and instances small enough to look into.

In: ports. Out: a router's process; HTTP servers that note what they are asked and answer as told.
Never: computes anything; leaves a process behind.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from omni_async.cli.servers.vllm_router import VllmRouter
from omni_async.kv.control import Mode, Registered, Registration, Role, ZmqAddress, http_address

HOST = "127.0.0.1"


def router_or_skip() -> None:
    if importlib.util.find_spec("vllm_router") is None:
        pytest.skip("vllm-router is not installed; `nox -s tests` installs it")


@contextmanager
def a_router() -> Iterator[VllmRouter]:
    """One that answers; whom it serves, it does not know yet."""
    router_or_skip()
    with VllmRouter() as router:
        yield router


@dataclass
class Message:
    """A request or an answer."""

    status: int
    path: str
    headers: dict[str, str]
    body: Any


async def _read(reader: asyncio.StreamReader) -> Message:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {}
    for line in filter(None, head[1:]):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        raw = b""
        while size := int(await reader.readline(), 16):
            raw += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        body = raw.decode()
    first = head[0].split(" ")
    answers = first[0].startswith("HTTP/")
    return Message(int(first[1]) if answers else 0, "" if answers else first[1], headers, body)


def _written(head: str, body: Any) -> bytes:
    raw = b"" if body is None else json.dumps(body).encode()
    head += f"\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\nconnection: close"
    return f"{head}\r\n\r\n".encode() + raw


async def asked(port: int, method: str, path: str, body: Any = None) -> Message:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(_written(f"{method} {path} HTTP/1.1\r\nhost: {HOST}", body))
        return await asyncio.wait_for(_read(reader), 30)
    finally:
        writer.close()


Reply = Callable[[Message], Awaitable[Any]]


async def a_token(request: Message) -> Any:
    """An answer to a completion."""
    return {"choices": [{"text": "token", "index": 0}]}


@asynccontextmanager
async def served(port: int, reply: Reply, host: str = HOST) -> AsyncIterator[list[Message]]:
    """An HTTP server; what it was asked."""
    requests: list[Message] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read(reader)
            requests.append(request)
            writer.write(_written("HTTP/1.1 200 OK", await reply(request)))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):  # the router has opened it and gone
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, port)
    try:
        yield requests
    finally:
        server.close()
        await server.wait_closed()


@dataclass
class Instance:
    """An HTTP server, registered."""

    record: Registered
    registration: Registration
    requests: list[Message]


@asynccontextmanager
async def instance(
    role: Role,
    mode: Mode,
    http_port: int,
    zmq: ZmqAddress,
    router: VllmRouter,
    reply: Reply = a_token,
    *,
    host: str = HOST,
    **sizes: int,
) -> AsyncIterator[Instance]:
    """One that runs until left, as the router knows it."""
    record = Registered(
        type=role,
        http_address=http_address(host, http_port),
        zmq_address=str(zmq),
        transfer_mode=mode,
        **sizes,
    )
    async with served(http_port, reply, host) as requests:
        found = Instance(record, Registration(record, HOST, router.ping_port, 0.2), requests)
        try:
            yield found
        finally:
            await found.registration.aclose()


async def completed(router: VllmRouter, prompt: str = "p") -> Message:
    """A completion through the router, once it has heard of a pair."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 5, "temperature": 0}
    for _ in range(500):
        answer = await asked(router.port("http"), "POST", "/v1/completions", body)
        if answer.body != "No eligible P/D pair":
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(router.words())
