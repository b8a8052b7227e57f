"""What MORI-IO offers to the hall.

In: options. Out: a WRITE engine, memory that it can register, ZMQ for the words.
Never: opens anything before the machine was looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..._aio.executor import OwnedExecutor
from ...abc import Engine, Finding, MemorySource, Options, Sight
from ...errors import ConfigError
from ...model import Capabilities, Role, Verb
from ..addressed import AddressedBackend, host_of
from ..machine import DEVICE_POOL, pool_memory
from ..prepared import Prepared
from ._native import NAME, Native
from .checks import Machine, check, examine
from .config import MoriTransferEngineOptions
from .engine import MoriEngine


class MoriTransferEngineBackend(AddressedBackend):
    """``mori``: the sender writes into the receiver's memory, over RDMA or between GPUs of one host."""

    name = NAME
    alias = "mori"
    options = MoriTransferEngineOptions

    def __init__(self) -> None:
        self._made: Prepared[Native] = Prepared()

    def capabilities(self, options: Options) -> Capabilities:
        mine = _mine(options)
        return Capabilities(
            backend=self.name,
            verb=Verb.WRITE,
            cross_host=mine.cross_host,
            device_memory=mine.memory_pool_device != "cpu",
            recall=False,
            revoke=True,
        )

    def machine(self) -> Machine:
        """Where to look."""
        return Machine()

    def device_of(self, options: MoriTransferEngineOptions) -> str:
        """Where the pool lives, with the device's number: PyTorch and the engine are to mean the same one."""
        device = options.memory_pool_device
        if device != "cuda":
            return device
        import torch

        return f"cuda:{torch.cuda.current_device()}"

    async def prepare(self, options: Options, role: Role) -> Options:
        mine = _mine(options)
        executor = OwnedExecutor("mori-opening", 1)
        try:
            host = await host_of(mine, executor)
            if ":" in host and mine.backend_type == "rdma":
                raise ConfigError(
                    f"{NAME}: the engine listens and connects by IPv4 only, and host is {host}; name an IPv4 "
                    "address of this host",
                    path="host",
                )
            await executor.run(check, mine, self.machine())
            device = self.device_of(mine)
            found: dict[str, object] = {"host": host, "memory_pool_device": device}
            if mine.memory_pool_size is None and device != "cpu":
                found["memory_pool_size"] = DEVICE_POOL
            prepared = mine.model_copy(update=found)
            native = await executor.finish(self._maker(prepared))
        finally:
            executor.close()
        return self._made.keep(prepared, native)

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        machine = self.machine()
        if sight != machine.sight:
            machine = Machine(sight=sight)
        executor = OwnedExecutor("mori-examining", 1)
        try:
            told = await executor.run(examine, _mine(options), machine)
        finally:
            executor.close()
        if not sight.here or any(one.status == "fault" for one in told):
            return told
        # The vendor ends the process where its own libraries do not fit the cards: here that is told.
        return [*told, *await super().examine(options, role, sight)]

    def engine(self, options: Options, role: Role) -> Engine:
        mine = _mine(options)
        return MoriEngine(
            self._made.take(options), self._maker(mine), role, mine.memory_pool_device
        )

    def memory(self, options: Options, role: Role) -> MemorySource:
        return pool_memory(_mine(options).memory_pool_device)

    @staticmethod
    def _maker(options: MoriTransferEngineOptions) -> Callable[[], Native]:
        return partial(Native, options, options.host, _settled)


def _settled() -> None:
    """Wait until every GPU that this process sees has done what it was told to."""
    if "torch" not in sys.modules:
        return  # nobody here has used one
    torch: Any = sys.modules["torch"]
    for number in range(torch.cuda.device_count()):
        torch.cuda.synchronize(number)


def _mine(options: Options) -> MoriTransferEngineOptions:
    assert isinstance(options, MoriTransferEngineOptions)
    return options
