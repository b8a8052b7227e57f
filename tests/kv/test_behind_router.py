"""Instances with caches behind the real vllm-router: a completion takes the cache along."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from omni_async.cli.free_ports import FreePorts
from omni_async.cli.servers.vllm_router import VllmRouter
from omni_async.kv.control.options import EXTRA
from omni_async.kv.instance import KVInstance
from omni_async.registry import register_backend
from omni_async.testing.doubles.addressed import LoopbackZmq
from tests.kv.control.routers import (
    HOST,
    Message,
    a_router,
    a_token,
    completed,
    served,
)
from tests.kv.nodes import Node, layout

BLOCKS = 3
"""Of each request."""


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    register_backend(LoopbackZmq())
    with FreePorts() as kept:
        yield kept


@pytest.fixture
def router() -> Iterator[VllmRouter]:
    with a_router() as one:
        yield one


class Server:
    """A prefill or a decode server; blocks are given to one request after the other."""

    def __init__(self, instance: KVInstance, node: Node) -> None:
        self.instance = instance
        self.node = node
        self.given = 0
        self.whole: list[tuple[list[int], int | None]] = []
        self.endings: list[asyncio.Task[None]] = []

    def blocks(self) -> list[int]:
        first, self.given = self.given, self.given + BLOCKS
        return [block % self.node.layout.num_blocks for block in range(first, first + BLOCKS)]

    async def prefill(self, request: Message) -> Any:
        params = request.body.get("kv_transfer_params")
        job = await self.instance.prefill(
            params, request.headers["x-request-id"], block_ids=self.blocks(), tokens=10
        )
        assert job is not None
        for number in range(self.node.layout.layers):
            await asyncio.sleep(0)
            job.layer_ready(number)
        answer = await job.seal()
        self.endings.append(asyncio.create_task(job.delivered()))
        return {**await a_token(request), "kv_transfer_params": answer}

    async def decode(self, request: Message) -> Any:
        params = request.body.get("kv_transfer_params")
        blocks = self.blocks()
        progress = await self.instance.decode(
            params, request.headers["x-request-id"], block_ids=blocks
        )
        assert progress is not None
        await progress.all()
        self.whole.append((blocks, progress.tokens))
        return await a_token(request)


@contextlib.asynccontextmanager
async def server(
    name: str, mode: str, backend: str, router: VllmRouter, ports: FreePorts, namespace: str
) -> AsyncIterator[Server]:
    """Its name begins with its role."""
    node = Node(layout(num_blocks=60))
    role, http = name[0], ports.of((name, "http"))
    extra = {
        "proxy_ip": HOST,
        "proxy_ping_port": str(router.ping_port),
        "http_port": str(http),
        "host_ip": HOST,
        "handshake_port": str(ports.of((name, "handshake"))),
        "notify_port": str(ports.of((name, "notify"))),
        "read_mode": str(mode == "read"),
        "backend": backend,
        "ping_interval": 0.5,
    }
    kv_role = {"P": "kv_producer", "D": "kv_consumer"}[role]
    config = {"kv_connector": "MoRIIOConnector", "kv_role": kv_role, EXTRA: extra}
    async with KVInstance(config, node.layout, node.caches, namespace=namespace) as instance:
        found = Server(instance, node)
        async with served(http, found.prefill if role == "P" else found.decode):
            yield found


@pytest.mark.parametrize(("mode", "backend"), [("write", "loopback-zmq"), ("read", "shm")])
async def test_a_completion(
    router: VllmRouter, ports: FreePorts, namespace: str, mode: str, backend: str
) -> None:
    async with (
        server("P", mode, backend, router, ports, namespace) as prefill,
        server("D", mode, backend, router, ports, namespace) as decode,
    ):
        prefill.node.fill(1)
        decode.node.spoil()
        answer = await completed(router)
        assert (answer.status, answer.body["choices"][0]["text"]) == (200, "token")
        answers = await asyncio.gather(*(completed(router) for _ in range(5)))
        assert [one.status for one in answers] == [200] * 5
        await asyncio.gather(*prefill.endings)
        assert len(decode.whole) == 6
        # Which request got which blocks of prefill is the servers' own affair; all are the same but for that.
        for blocks, tokens in decode.whole:
            assert tokens == 10
            assert any(
                not decode.node.wrong(1, blocks, prefill.node.layout, list(range(at, at + 3)), 10)
                for at in range(0, 18, 3)
            )
        assert prefill.instance.handshake.answered == 1


async def traffic(router: VllmRouter, over: asyncio.Event) -> int:
    """Completions one after the other; how many there were, all of them answered."""
    count = 0
    while not over.is_set():
        answer = await completed(router)
        assert (answer.status, answer.body) == (200, await a_token(answer))
        count += 1
        await asyncio.sleep(0.02)
    return count


async def test_more_instances_are_added_while_others_work(
    router: VllmRouter, ports: FreePorts, namespace: str
) -> None:
    over = asyncio.Event()

    async def served_by(new: Server) -> None:
        while new.given < 3 * BLOCKS:  # noqa: ASYNC110 - it is the router that decides
            await asyncio.sleep(0.01)

    def opened(name: str) -> contextlib.AbstractAsyncContextManager[Server]:
        return server(name, "write", "shm", router, ports, namespace)

    async with opened("P"), opened("D"):
        going_on = asyncio.ensure_future(traffic(router, over))
        async with opened("P2") as prefill, opened("D2") as decode:
            await served_by(prefill)
            await served_by(decode)
            over.set()
            assert await going_on > 3


@pytest.mark.soak
async def test_instances_leave_while_others_work(
    router: VllmRouter, ports: FreePorts, namespace: str
) -> None:
    over = asyncio.Event()

    def opened(name: str) -> contextlib.AbstractAsyncContextManager[Server]:
        return server(name, "write", "shm", router, ports, namespace)

    async with opened("P"), opened("D"):
        async with opened("P2") as prefill, opened("D2") as decode:
            await completed(router)
            going_on = asyncio.ensure_future(traffic(router, over))
            await asyncio.gather(prefill.instance.withdraw(), decode.instance.withdraw())
            given = prefill.given, decode.given
        await asyncio.sleep(1.0)
        over.set()
        assert await going_on > 20
        assert given == (prefill.given, decode.given)
