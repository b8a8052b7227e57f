"""What Mooncake's store offers to the hall.

In: options. Out: a store that is connected, plain memory.
Never: opens anything before the package was found.
"""

from __future__ import annotations

from ..._aio.executor import OwnedExecutor
from ...abc import Finding, MemorySource, Options, Sight, Store, StoreBackend
from ...model import Role
from ...pool.memory import AnonymousMemory
from ...rendezvous.zmq_hosts import local_places
from .checks import check_here
from .codes import NAME
from .config import MooncakeStoreOptions
from .examination import findings
from .opening import client_within, settings_of
from .store import MooncakeStore


class MooncakeStoreBackend(StoreBackend):
    """``mooncake-store``: payloads lie in memory that clients lend, under keys that a master knows."""

    name = NAME
    alias = "mooncake-store"
    options = MooncakeStoreOptions

    async def prepare(self, options: Options, role: Role) -> Options:
        mine = _mine(options)
        executor = OwnedExecutor("mooncake-store-opening", 1)
        try:
            mine = await _placed(mine, executor)
            await executor.run(check_here, mine)
        finally:
            executor.close()
        return mine

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        executor = OwnedExecutor("mooncake-store-examination", 1)
        try:
            return list(findings(await _placed(_mine(options), executor), sight))
        finally:
            executor.close()

    async def store(self, options: Options, role: Role) -> Store:
        mine = _mine(options)
        executor = OwnedExecutor("mooncake-store-opening", 1)
        try:
            settings = settings_of(mine, mine.host)
            client = await client_within(settings, mine.setup_timeout, executor)
        finally:
            executor.close()
        return MooncakeStore(client)

    def memory(self, options: Options, role: Role) -> MemorySource:
        return AnonymousMemory()


async def _placed(options: MooncakeStoreOptions, executor: OwnedExecutor) -> MooncakeStoreOptions:
    """The options with an address that others can be told."""
    if options.host != "auto":
        return options
    place = (await local_places("auto", 0, executor))[0]
    return options.model_copy(update={"host": place.host})


def _mine(options: Options) -> MooncakeStoreOptions:
    assert isinstance(options, MooncakeStoreOptions)
    return options
