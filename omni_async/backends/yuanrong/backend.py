"""What Yuanrong's datasystem offers to the hall.

In: options. Out: a client of a worker, memory that its process can map.
Never: imports the vendor in this process.
"""

from __future__ import annotations

from ...abc import Finding, MemorySource, Options, Sight, StoreBackend
from ...abc.store import Store
from ...model import Role
from ...pool.memory import MemfdMemory
from .config import YuanrongOptions
from .line import NAME
from .store import YuanrongStore


class YuanrongBackend(StoreBackend):
    """``yuanrong``: a worker of the datasystem keeps the bytes."""

    name = NAME
    alias = "yuanrong"
    options = YuanrongOptions

    async def store(self, options: Options, role: Role) -> Store:
        store = YuanrongStore(_mine(options))
        await store.open()
        return store

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        from .examination import (
            findings,
        )  # it loads the vendor, which this process must not do otherwise

        return list(findings(_mine(options)))

    def memory(self, options: Options, role: Role) -> MemorySource:
        return MemfdMemory()


def _mine(options: Options) -> YuanrongOptions:
    assert isinstance(options, YuanrongOptions)
    return options
