"""What Yuanrong's transfer engine offers to the hall.

In: options. Out: a READ engine, memory of an NPU that it can register, ZMQ for the words.
Never: opens anything before the machine was looked at.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import NamedTuple

from ..._aio.executor import OwnedExecutor
from ...abc import Engine, Finding, MemorySource, Options, Sight
from ...abc.findings import of_error
from ...errors import ConfigError
from ...model import Capabilities, Role, Verb
from ..addressed import AddressedBackend, host_of
from ..prepared import Prepared
from . import checks
from ._native import NAME, NativeEngine, load
from .config import YuanrongTransferEngineOptions
from .engine import Device, YuanrongTransferEngine
from .npu import Npu


class Made(NamedTuple):
    """For one transport."""

    native: NativeEngine
    device: Device
    address: str
    """Of the NPU in the network of NPUs."""


class YuanrongTransferEngineBackend(AddressedBackend):
    """``yuanrong-te``: the receiver reads out of the sender's memory, from NPU to NPU."""

    name = NAME
    alias = "yuanrong-te"
    options = YuanrongTransferEngineOptions

    def __init__(self) -> None:
        self._made: Prepared[Made] = Prepared()

    # what a double stands in for

    def vendor(self) -> ModuleType:
        """The vendor's module; blocks."""
        return load()

    def device(self, number: int) -> Device:
        """The NPU of that number."""
        return Npu(number)

    def machine(self, sight: Sight) -> checks.Machine:
        """Where to look for what is needed."""
        return checks.Machine(sight)

    def check(self, options: YuanrongTransferEngineOptions, number: int) -> str:
        """See that the machine has all that is needed; blocks. The NPU's address among NPUs."""
        return checks.check(options, number, self.machine(Sight()))

    # what the hall asks

    def capabilities(self, options: Options) -> Capabilities:
        return Capabilities(
            backend=self.name, verb=Verb.READ, cross_host=True, device_memory=True, recall=False
        )

    async def prepare(self, options: Options, role: Role) -> Options:
        mine = _mine(options)
        number = checks.device_of(mine, os.environ)
        executor = OwnedExecutor("yuanrong-te-opening", 1)
        try:
            host = await host_of(mine, executor)
            found = {"host": host, "device_name": f"npu:{number}"}
            mine = mine.model_copy(update=found)
            address = await executor.run(self.check, mine, number)
            # An engine of its own for each transport: its memory, its port and its threads end with it.
            native = await executor.finish(self._start, mine)
        finally:
            executor.close()
        return self._made.keep(mine, Made(native, self.device(number), address))

    def _start(self, options: YuanrongTransferEngineOptions) -> NativeEngine:
        port = None if options.rpc_port == "auto" else options.rpc_port
        return NativeEngine(self.vendor(), options.host, port, options.device_name)

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        mine = _mine(options)
        try:
            number = checks.device_of(mine, sight.environ)
        except ConfigError as error:
            return [of_error(error)]
        executor = OwnedExecutor("yuanrong-te-examining", 1)
        try:
            told = await executor.run(checks.examine, number, self.machine(sight))
        finally:
            executor.close()
        if not sight.here or any(one.status == "fault" for one in told):
            return told
        return [*told, *await super().examine(options, role, sight)]

    def engine(self, options: Options, role: Role) -> Engine:
        made = self._made.take(options)
        return YuanrongTransferEngine(*made)

    def memory(self, options: Options, role: Role) -> MemorySource:
        return self.device(checks.device_of(_mine(options), os.environ)).memory()


def _mine(options: Options) -> YuanrongTransferEngineOptions:
    assert isinstance(options, YuanrongTransferEngineOptions)
    return options
