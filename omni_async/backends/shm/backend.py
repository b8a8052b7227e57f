"""What shared memory offers to the hall.

In: options. Out: a MAP engine, memfd segments, Unix sockets.
Never: makes a name in a file system, unless ``socket_dir`` asks for one.
"""

from __future__ import annotations

from ...abc import (
    Backend,
    Channels,
    DirectBackend,
    Engine,
    Finding,
    MemorySource,
    Options,
    Sight,
    StoreOptions,
)
from ...errors import BackendUnavailable
from ...model import Capabilities, Role, Verb
from ...pool.memory import MemfdMemory
from ...rendezvous.unix_channel import UnixChannels
from .config import SharedMemoryOptions
from .engine import MapEngine
from .examination import findings
from .segment_backend import SegmentBackend


class SharedMemoryBackend(DirectBackend):
    """``shm``: processes of one user on one host."""

    name = "SharedMemoryConnector"
    alias = "shm"
    options = SharedMemoryOptions

    def capabilities(self, options: Options) -> Capabilities:
        other, theirs = self.facing(options)
        if other is not self:
            return other.capabilities(theirs)
        return Capabilities(backend=self.name, verb=Verb.MAP)

    def facing(self, options: Options) -> tuple[Backend, Options]:
        assert isinstance(options, SharedMemoryOptions)
        if options.peer != "vllm-omni":
            return self, options
        common = {name: getattr(options, name) for name in Options.model_fields}
        return SegmentBackend(), StoreOptions(peer="vllm-omni", **common)

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        assert isinstance(options, SharedMemoryOptions)
        other, theirs = self.facing(options)
        if other is not self:
            return await other.examine(theirs, role, sight)
        return list(findings(options.socket_dir))

    def engine(self, options: Options, role: Role) -> Engine:
        import os

        if not hasattr(os, "memfd_create"):
            raise BackendUnavailable(
                "shared memory needs Linux with memfd_create (kernel 3.17)",
                backend=self.name,
                remedy="run on Linux",
            )
        return MapEngine()

    def memory(self, options: Options, role: Role) -> MemorySource:
        return MemfdMemory()

    def channels(self, options: Options) -> Channels:
        assert isinstance(options, SharedMemoryOptions)
        return UnixChannels(options.socket_dir, peer_timeout=options.peer_timeout)
