"""What NIXL offers to the hall.

In: options. Out: a WRITE engine, memory that it can register, ZMQ for the words.
Never: opens anything before the machine was looked at.
"""

from __future__ import annotations

from ..._aio.executor import OwnedExecutor
from ...abc import Engine, Finding, MemorySource, Options, Sight
from ...model import Capabilities, Role, Verb
from ...pool.device import DeviceMemory
from ...pool.memory import AnonymousMemory
from ..addressed import AddressedBackend, host_of
from ..machine import DEVICE_POOL
from ..prepared import Prepared
from ._native import NAME, Agent
from .checks import check, device_of, pins
from .config import NixlOptions
from .engine import NixlEngine
from .examination import findings


class NixlBackend(AddressedBackend):
    """``nixl``: the sender writes into the receiver's memory, by whatever way UCX finds."""

    name = NAME
    alias = "nixl"
    options = NixlOptions

    def __init__(self) -> None:
        self._agents: Prepared[Agent] = Prepared()

    def capabilities(self, options: Options) -> Capabilities:
        return Capabilities(
            backend=self.name,
            verb=Verb.WRITE,
            cross_host=True,
            device_memory=device_of(_mine(options)) != "cpu",
            recall=False,
            revoke=True,
        )

    async def prepare(self, options: Options, role: Role) -> Options:
        mine = _mine(options)
        executor = OwnedExecutor("nixl-opening", 1)
        try:
            found: dict[str, object] = {"host": await host_of(mine, executor)}
            if mine.memory_pool_size is None and device_of(mine) != "cpu":
                found["memory_pool_size"] = DEVICE_POOL
            await executor.run(check, mine)
            # An agent of its own for each transport: what peers know of it ends with it, and nothing
            # of it stays in the process.
            agent = await executor.finish(
                Agent,
                mine.agent_name or "omni-async",
                mine.backends,
                mine.num_threads,
                answers=role == "receiver",
            )
        finally:
            executor.close()
        prepared = mine.model_copy(update={**found, "agent_name": agent.name})
        return self._agents.keep(prepared, agent)

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        told = list(findings(_mine(options), sight))
        if not sight.here or any(one.status == "fault" for one in told):
            return told
        return [*told, *await super().examine(options, role, sight)]

    def engine(self, options: Options, role: Role) -> Engine:
        mine = _mine(options)
        agent = self._agents.take(options)
        device = device_of(mine)
        return NixlEngine(agent, role, device, mine.backends, pins=pins(device))

    def memory(self, options: Options, role: Role) -> MemorySource:
        device = device_of(_mine(options))
        if device != "cpu":
            import torch

            return DeviceMemory(device, torch)
        # Bytes that come over a socket are copied by the agent's own thread: a refusal would kill it.
        return AnonymousMemory(refuses=False)


def _mine(options: Options) -> NixlOptions:
    assert isinstance(options, NixlOptions)
    return options
