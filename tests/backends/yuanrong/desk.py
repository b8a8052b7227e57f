"""A store over a worker with memory beside it, so that tests can speak in bytes.

In: options. Out: an open store that takes names and bytes.
Never: hides an error of the store.
"""

from __future__ import annotations

from typing import Any

from omni_async.backends.yuanrong import YuanrongBackend, YuanrongOptions
from omni_async.backends.yuanrong.line import ClientLine
from omni_async.backends.yuanrong.store import YuanrongStore
from omni_async.pool.memory import MemfdMemory
from tests.backends.mooncake_store.desk import ROOM, Desk


class YuanrongDesk(Desk):
    """One call at a time."""

    store: YuanrongStore

    def __init__(self, store: YuanrongStore, room: int = ROOM) -> None:
        self.store = store
        self.block = MemfdMemory().allocate(room)
        self.region = store.register(self.block.address, self.block.nbytes, fd=self.block.fd)

    @property
    def line(self) -> ClientLine:
        """The client's process, while it is connected."""
        assert self.store._line is not None
        return self.store._line


async def opened(extra: dict[str, Any]) -> YuanrongStore:
    """A store with these options."""
    options = YuanrongOptions.model_validate(extra)
    store = await YuanrongBackend().store(options, "sender")
    assert isinstance(store, YuanrongStore)
    return store
