"""One instance: ``python -m examples.pd_disaggregation.server --kv-transfer-config JSON``.

In: what vLLM takes as well, such as ``--kv-transfer-config`` and ``--tensor-parallel-size``. Out: a server.
Never: leaves one of its ranks behind.

The first rank starts the others, which end when it does. It serves HTTP at the configuration's ``http_port``.
SIGTERM: the proxy forgets this instance, requests are served to their ends, then it leaves. SIGINT: it leaves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager

import torch
from aiohttp import web

from omni_async.kv.instance import KVInstance

from .cache import Blocks, PagedCache, layout_of
from .engine import Engine
from .line import Calls, Gather, obey, over
from .model import Model, Shape
from .rank import Rank, Ranks
from .serving import Service


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.pd_disaggregation.server")
    parser.add_argument("--kv-transfer-config", type=json.loads, required=True)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--namespace", help="of names on this host, where the backend has names")
    parser.add_argument("--form", default="split", choices=["split", "stacked", "paired"])
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--num-blocks", type=int, default=2048)
    parser.add_argument("--tp-rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    torch.set_num_threads(1)  # there are more ranks than cores
    if options.tp_rank:
        return asyncio.run(_follow(options))
    return asyncio.run(_lead(options, given))


async def _follow(options: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN
        )  # it ends with the first rank, which they are meant for
    calls, gathering = (socket.socket(fileno=fd) for fd in options.lines)
    with _parts(options, [gathering]) as (model, cache):
        async with _instance(options, cache) as instance:
            with closing(Rank(instance, model, cache)) as rank:
                await obey(*await over(calls), rank.works)
    return 0


async def _lead(options: argparse.Namespace, given: Sequence[str]) -> int:
    stopped: asyncio.Future[signal.Signals | None] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopped, number)
    extra = options.kv_transfer_config["kv_connector_extra_config"]
    service = Service()
    async with AsyncExitStack() as stack:
        followers = [_Follower(given, rank) for rank in range(1, options.tensor_parallel_size)]
        for follower in followers:
            stack.push_async_callback(follower.close)
        others = [await follower.calls() for follower in followers]
        for other in others:
            other.ended.add_done_callback(lambda _: _stop(stopped, None))
        parts = _parts(options, [follower.gathering for follower in followers])
        model, cache = stack.enter_context(parts)
        runner = web.AppRunner(service.app, handler_cancellation=True, shutdown_timeout=30)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, options.host, int(extra["http_port"]), reuse_address=True)
        await site.start()
        for other in others:
            await other.call("gaps", [None])  # they answer when they can work
        # Last of all: from here on the proxy sends requests.
        instance = await stack.enter_async_context(_instance(options, cache))
        rank = stack.enter_context(closing(Rank(instance, model, cache)))
        blocks = Blocks(cache.layout.num_blocks)
        engine = service.engine = Engine(Ranks(rank, others), blocks, cache.layout.block_size)
        why = await stopped
        if why is signal.SIGTERM:
            await instance.withdraw()
            await runner.cleanup()
            await engine.aclose()
    return 1 if why is None else 0


def _stop(stopped: asyncio.Future[signal.Signals | None], why: signal.Signals | None) -> None:
    if not stopped.done():
        stopped.set_result(why)


def _instance(options: argparse.Namespace, cache: PagedCache) -> KVInstance:
    return KVInstance(
        options.kv_transfer_config, cache.layout, cache.memory, namespace=options.namespace
    )


@contextmanager
def _parts(
    options: argparse.Namespace, others: Sequence[socket.socket]
) -> Iterator[tuple[Model, PagedCache]]:
    shape, rank, size = Shape(), options.tp_rank, options.tensor_parallel_size
    layout = layout_of(
        shape,
        form=options.form,
        block_size=options.block_size,
        num_blocks=options.num_blocks,
        tp_size=size,
        tp_rank=rank,
    )
    with closing(Gather(others, rank, size)) as gather:
        yield Model(shape, tp_rank=rank, tp_size=size, gather=gather), PagedCache(layout)


class _Follower:
    """Another rank's process, and both lines to it."""

    def __init__(self, given: Sequence[str], rank: int) -> None:
        self._own, theirs = socket.socketpair()
        self.gathering, theirs_gathering = socket.socketpair()
        fds = [theirs.fileno(), theirs_gathering.fileno()]
        command = [sys.executable, "-m", "examples.pd_disaggregation.server", *given]
        command += ["--tp-rank", str(rank), "--lines", *map(str, fds)]
        self._process = subprocess.Popen(command, pass_fds=fds)
        theirs.close()
        theirs_gathering.close()
        self._calls: Calls | None = None

    async def calls(self) -> Calls:
        self._calls = Calls(*await over(self._own))
        return self._calls

    async def close(self) -> None:
        """End it."""
        if self._calls is not None:
            await self._calls.close()
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    sys.exit(main())
