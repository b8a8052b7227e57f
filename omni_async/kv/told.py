"""Which layers of one session have been told, and which of those were not taken in yet.

In: layers, from any thread. Out: whether more may be told, which are awaited.
Never: waits, knows a loop; lets a seal overtake a layer that was told before it.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from ..errors import UsageError


class Event(Protocol):
    """When a layer's values are there, such as a ``torch.cuda.Event`` that was recorded."""

    def synchronize(self) -> Any:
        """Block until then; called in a thread that waits for events, and for nothing else."""


class Told:
    """Of one session; all of it from any thread.

    Args:
        name: of the session, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._layers: set[int] = set()
        self._pending: dict[int, Event | None] = {}
        self._sealed = False

    def tell(self, layer: int, event: Event | None) -> None:
        """A layer is ready, or will be when its event has come.

        Raises:
            UsageError: it was told before, it was sealed, or that is no event.
        """
        if event is not None and not callable(getattr(event, "synchronize", None)):
            raise UsageError(f"an event has synchronize(), {event!r} has not")
        with self._lock:
            if self._sealed:
                raise UsageError(f"{self._name} was sealed; layer {layer} comes too late")
            if layer in self._layers:
                raise UsageError(f"{self._name}: layer {layer} was told before; each is told once")
            self._layers.add(layer)
            self._pending[layer] = event

    def taken(self, layer: int) -> None:
        """It was passed on, or never will be. Idempotent."""
        with self._lock:
            self._pending.pop(layer, None)

    def seal(self) -> bool:
        """Whether all that was told is taken in: then nothing more may be told. Idempotent."""
        with self._lock:
            self._sealed = self._sealed or not self._pending
            return self._sealed

    @property
    def awaited(self) -> dict[int, Event]:
        """Layers whose events have not come, in the order in which they were told."""
        with self._lock:
            return {layer: event for layer, event in self._pending.items() if event is not None}
