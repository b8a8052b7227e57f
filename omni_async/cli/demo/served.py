"""A store's own server for the demo, where it goes over one.

In: a backend's name. Out: a server that is ready while the demo runs, and ended with it.
Never: holds up the event loop, leaves a server behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from omni_async import BackendUnavailable

from ... import registry
from ..._aio.executor import OwnedExecutor
from ..servers import Server, ServerFailed
from ..servers.mooncake import NAME as MOONCAKE_STORE
from ..servers.mooncake import MooncakeMaster
from ..servers.yuanrong import NAME as YUANRONG
from ..servers.yuanrong import YuanrongWorker

MEMORY = 512 << 20
"""Bytes that a store keeps here: what is not read yet."""

_SERVERS: dict[str, Callable[[], Server]] = {
    MOONCAKE_STORE: lambda: MooncakeMaster(segment=MEMORY // 2),
    YUANRONG: lambda: YuanrongWorker(memory=MEMORY),
}


def server_of(backend: str | None) -> Server | None:
    """The server of a store's backend, not started; ``None`` where it needs none, or nobody knows it.

    Whoever asked closes it.
    """
    if backend is None or backend not in registry.names():
        return None
    make = _SERVERS.get(registry.canonical(backend))
    return None if make is None else make()


@contextlib.asynccontextmanager
async def serving(server: Server | None) -> AsyncIterator[None]:
    """It answers within the block. To be entered on the main thread.

    Raises:
        BackendUnavailable: its package is not installed, or it does not start.

    Cancellation: safe; it is ended.
    """
    if server is None:
        yield
        return
    waiting = OwnedExecutor("demo-server", 1)
    try:
        try:
            server.begin()
            await waiting.run(server.wait)
        except BackendUnavailable as error:
            text = f"{error}; {error.remedy}" if error.remedy else str(error)
            raise BackendUnavailable(text, backend=error.backend, remedy=error.remedy) from error
        except ServerFailed as error:
            raise BackendUnavailable(str(error)) from error
        yield
    finally:
        server.kill()  # it keeps nothing that anybody wants
        waiting.close()
