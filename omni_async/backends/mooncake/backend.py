"""What Mooncake's transfer engine offers to the hall.

In: options. Out: a WRITE engine, memory that it can register, ZMQ for the words.
Never: opens anything before the machine was looked at.
"""

from __future__ import annotations

import os

from ..._aio.executor import OwnedExecutor
from ...abc import Engine, Finding, MemorySource, Options, Revoke, Sight
from ...abc.findings import of_error, ok
from ...errors import BackendUnavailable, ConfigError
from ...model import Capabilities, Role, Verb
from ..addressed import AddressedBackend, host_of
from ..machine import DEVICE_POOL, cuda_in_use, pool_memory
from ._native import NAME, shared_engine
from .checks import Machine, check, named_devices
from .config import MooncakeTransferEngineOptions
from .engine import MooncakeEngine, revoke_of
from .examination import findings


class MooncakeTransferEngineBackend(AddressedBackend):
    """``mooncake``: the sender writes into the receiver's memory, over TCP or RDMA."""

    name = NAME
    alias = "mooncake"
    options = MooncakeTransferEngineOptions

    def capabilities(self, options: Options) -> Capabilities:
        mine = _mine(options)
        return Capabilities(
            backend=self.name,
            verb=Verb.WRITE,
            cross_host=True,
            device_memory=mine.memory_pool_device != "cpu",
            recall=False,
            revoke=revoke_of(mine.protocol, mine.memory_pool_device) is not Revoke.NOTHING,
        )

    async def prepare(self, options: Options, role: Role) -> Options:
        mine = _mine(options)
        executor = OwnedExecutor("mooncake-opening", 1)
        try:
            # One address for the engine and the channel: peers are told both, and reach both or none.
            host = await host_of(mine, executor)
            devices = ",".join(named_devices(mine, os.environ))
            found: dict[str, object] = {"host": host, "device_name": devices}
            if mine.memory_pool_size is None and mine.memory_pool_device != "cpu":
                found["memory_pool_size"] = DEVICE_POOL
            mine = mine.model_copy(update=found)
            await executor.run(check, mine)
            await executor.run(shared_engine, host, mine.protocol, devices)
        finally:
            executor.close()
        return mine

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        mine = _mine(options)
        told = list(findings(mine, Machine(root=sight.root, environ=sight.environ)))
        if not sight.here or any(one.status == "fault" for one in told):
            return told
        try:
            prepared = _mine(await self.prepare(mine, role))
        except (BackendUnavailable, ConfigError) as error:
            return [*told, of_error(error)]
        return [*told, ok("engine", f"starts on {prepared.host} with protocol {mine.protocol}")]

    def engine(self, options: Options, role: Role) -> Engine:
        mine = _mine(options)
        return MooncakeEngine(
            shared_engine(mine.host, mine.protocol, mine.device_name),
            role,
            mine.memory_pool_device,
            pins=mine.protocol != "tcp"
            or mine.memory_pool_device != "cpu"
            or cuda_in_use() is not None,
        )

    def memory(self, options: Options, role: Role) -> MemorySource:
        return pool_memory(_mine(options).memory_pool_device)


def _mine(options: Options) -> MooncakeTransferEngineOptions:
    assert isinstance(options, MooncakeTransferEngineOptions)
    return options
