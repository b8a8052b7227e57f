"""Shared memory where the other end is a stage of vLLM-Omni: payloads under their keys in ``/dev/shm``.

In: options. Out: a store of named segments, plain memory.
Never: passes descriptors; that system knows none.
"""

from __future__ import annotations

import msgspec

from ...abc import MemorySource, Options, Store, StoreBackend, StoreOptions
from ...errors import BackendUnavailable
from ...model import Capabilities, Role
from ...pool.memory import AnonymousMemory
from .segment_files import FOLDER, there
from .segment_store import NAME, SegmentStore


class SegmentBackend(StoreBackend):
    """``shm`` with ``peer: vllm-omni``."""

    name = NAME
    alias = "shm"
    options = StoreOptions

    def capabilities(self, options: Options) -> Capabilities:
        facts = super().capabilities(options)
        # Whoever deletes a segment has it.
        return msgspec.structs.replace(facts, cross_host=False, exclusive=True)

    async def prepare(self, options: Options, role: Role) -> Options:
        if not there():
            raise BackendUnavailable(
                f"named shared memory needs {FOLDER}", backend=NAME, remedy="mount a tmpfs there"
            )
        return options

    async def store(self, options: Options, role: Role) -> Store:
        return SegmentStore(role)

    def memory(self, options: Options, role: Role) -> MemorySource:
        return AnonymousMemory()
