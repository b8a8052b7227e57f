"""A client of the store, once its servers answer.

In: options. Out: this process's client, or why there is none, within the time limit.
Never: blocks the event loop, sets a client up towards a server that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..._aio.executor import OwnedExecutor
from ...errors import BackendUnavailable
from ._native import SetupFailed, shared_client
from .client import Client, Settings
from .codes import NAME, words
from .config import MooncakeStoreOptions
from .contact import master_trouble, metadata_trouble

_FIRST, _LONGEST = 0.05, 1.0
_ONE_LOOK = 2.0
_START = "mooncake_master --rpc_port={port}"
_START_METADATA = (
    "mooncake_master --enable_http_metadata_server=true --http_metadata_server_port={port}, or set "
    "metadata_server to P2PHANDSHAKE"
)


_SET_UP = "the metadata service is not at that path, or `segment` and `localbuf` are more memory than there is"


def settings_of(options: MooncakeStoreOptions, host: str) -> Settings:
    return Settings(
        host=host,
        metadata=options.metadata_server,
        master=options.master,
        segment=options.segment,
        localbuf=options.localbuf,
        protocol=options.proto,
        devices=options.rdma,
        evictable=options.evictable,
    )


async def client_within(settings: Settings, timeout: float, executor: OwnedExecutor) -> Client:
    """The client, as soon as its servers answer.

    Raises:
        BackendUnavailable: they do not within ``timeout`` seconds, or refuse it.
        ConfigError: the vendor was loaded for the other IP version.

    Cancellation: safe; a look at a server that was begun ends by itself.
    """
    limit = asyncio.get_running_loop().time() + timeout
    for option, trouble in (("master", master_trouble), ("metadata_server", metadata_trouble)):
        address = settings.master if option == "master" else settings.metadata
        await _answering(option, address, trouble, limit, timeout, executor)
    return await _set_up(settings, limit, timeout, executor)


def how_to_start(option: str, address: str) -> str:
    """What to do where a server does not answer.

    Args:
        option: ``master`` or ``metadata_server``.
    """
    port = (address.partition("://")[2] or address).partition("/")[0].rpartition(":")[2]
    start = _START if option == "master" else _START_METADATA
    return f"start it: {start.format(port=port)}; or correct `{option}`"


async def _answering(
    option: str,
    address: str,
    trouble: Callable[[str, float], str | None],
    limit: float,
    timeout: float,
    executor: OwnedExecutor,
) -> None:
    loop = asyncio.get_running_loop()
    pause = _FIRST
    while True:
        left = limit - loop.time()
        why = await executor.run(trouble, address, max(0.05, min(left, _ONE_LOOK)))
        if why is None:
            return
        left = limit - loop.time()
        if left <= 0:
            raise BackendUnavailable(
                f"{why}: waited {timeout:g} s for it (option `{option}`, setup_timeout)",
                backend=NAME,
                remedy=how_to_start(option, address),
            )
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)


async def _set_up(
    settings: Settings, limit: float, timeout: float, executor: OwnedExecutor
) -> Client:
    loop = asyncio.get_running_loop()
    pause = _FIRST
    while True:
        try:
            return await executor.run(shared_client, settings)
        except SetupFailed as error:
            left = limit - loop.time()
            if left <= 0:
                raise BackendUnavailable(
                    f"the client of the store could not be set up within {timeout:g} s with master "
                    f"{settings.master}, metadata_server {settings.metadata}, host {settings.host} and proto "
                    f"{settings.protocol}: {_why(error.status, settings.master)} (status {error.status})",
                    backend=NAME,
                    remedy="set MC_LOG_LEVEL=INFO to hear what the client says about it",
                ) from error
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)


def _why(status: int, master: str) -> str:
    """A status of ``setup``, where the vendor has one number for several troubles."""
    return _SET_UP if status == -1 else words(status, master)
