"""An agent with a client of a store, and memory beside it.

In: a desk over a store, when it is told to open it. Out: orders as for :mod:`tests.cases.orders`.
Never: knows whose store it is.
"""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

from tests.backends.mooncake_store.desk import Desk
from tests.cases.orders import Orders

D = TypeVar("D", bound=Desk)


class StoreAgent(Orders, Generic[D]):
    """A subclass opens the desk, by ``open``."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.desk: D | None = None
        self.extra: dict[str, Any] = job["extra"]

    @property
    def there(self) -> D:
        assert self.desk is not None, "open comes first"
        return self.desk

    async def do_put(self, name: str, fill: int, nbytes: int) -> Any:
        """The seconds it took."""
        begun = time.perf_counter()
        await self.there.put(name, bytes([fill]) * nbytes)
        return time.perf_counter() - begun
