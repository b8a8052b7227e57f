"""The parts a transport over a store is wired from, and the names it puts into errors.

In: a backend's parts. Out: one object that both halves share.
Never: decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from ...abc import Store, StoreOptions
from ...errors import EngineFault, TransferError
from ...model import TransferKey
from ..wiring import Parts
from .operations import Operations

E = TypeVar("E", bound=TransferError)

FOREVER = 3600.0
"""How long the vendor may be asked to try, where the caller sets no limit."""


@dataclass(frozen=True, slots=True)
class StoreWiring(Parts):
    options: StoreOptions
    store: Store
    operations: Operations

    @property
    def foreign(self) -> bool:
        """The objects are those of vLLM-Omni."""
        return self.options.peer == "vllm-omni"

    def where(self, key: TransferKey) -> dict[str, Any]:
        """Fields that every transfer error of this transport carries."""
        return {
            "key": key.key,
            "edge": key.edge,
            "backend": self.backend,
            "peer": self.store.address,
        }

    def located(self, error: E, what: str, key: TransferKey) -> E:
        """The store and the pool know sizes and codes, not keys: say whose operation it was."""
        for name, value in self.where(key).items():
            setattr(error, name, value)
        by = f" ({self.store.address})" if isinstance(error, EngineFault) else ""
        error.args = (f"{what} of {key.key!r} on {key.edge}: {error}{by}",)
        return error

    def left(self, deadline: float | None) -> float:
        """Seconds for the vendor."""
        return FOREVER if deadline is None else max(0.001, deadline - self.loop.time())
