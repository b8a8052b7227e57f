"""What one process offers to the hall.

In: options. Out: the MAP engine over memory of this process, channels that are function calls.
Never: crosses a process boundary.
"""

from __future__ import annotations

from ...abc import Channels, DirectBackend, Engine, MemorySource, Options
from ...model import Capabilities, Role, Verb
from ...pool.memory import MemfdMemory
from ...rendezvous.local_channel import LocalChannels
from ..shm.engine import MapEngine
from .config import MemoryOptions


class MemoryBackend(DirectBackend):
    """Sender and receiver live in one process and on one event loop."""

    name = "MemoryConnector"
    alias = "memory"
    options: type[Options] = MemoryOptions

    def capabilities(self, options: Options) -> Capabilities:
        return Capabilities(backend=self.name, verb=Verb.MAP)

    def engine(self, options: Options, role: Role) -> Engine:
        return MapEngine()

    def memory(self, options: Options, role: Role) -> MemorySource:
        return MemfdMemory()

    def channels(self, options: Options) -> Channels:
        return LocalChannels()
