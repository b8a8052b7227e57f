"""KV caches: from the process that fills one to the processes that read it.

In: an engine's own cache tensors and block numbers. Out: the same blocks in another process's cache.
Never: computes attention, allocates blocks, decides what is recomputed.

Importing this loads nothing else; each name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .consumer import KVConsumer
    from .instance import KVInstance
    from .layout import KVLayout
    from .memory import KVMemory
    from .plan import KVMove, plan_moves, sources_of, targets_of
    from .prefill import Prefill
    from .producer import KVProducer
    from .progress import KVProgress
    from .session import KVSession

__all__ = [
    "KVConsumer",
    "KVInstance",
    "KVLayout",
    "KVMemory",
    "KVMove",
    "KVProducer",
    "KVProgress",
    "KVSession",
    "Prefill",
    "plan_moves",
    "sources_of",
    "targets_of",
]

_LATER = {
    "KVConsumer": "consumer",
    "KVInstance": "instance",
    "KVLayout": "layout",
    "KVMemory": "memory",
    "KVMove": "plan",
    "KVProducer": "producer",
    "KVProgress": "progress",
    "KVSession": "session",
    "Prefill": "prefill",
    "plan_moves": "plan",
    "sources_of": "plan",
    "targets_of": "plan",
}
"""Name → the module it lives in."""


def __getattr__(name: str) -> object:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
