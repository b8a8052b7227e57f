"""Stands for ``amd-mori`` at its import; shows nothing of a card, a GPU, their order of completion, or speed.

In: the vendor's calls, of its 1.0 or its 1.2 interface. Out: real bytes between two processes of one host, and the
vendor's ways to fail; faults as ordered by :mod:`~omni_async.testing.doubles.ordered`.
Never: leaves this host.

What it cannot show either: that real registration pins memory and ends the process where that is refused, that a
card writes to a process that stands still, that the vendor's thread takes a whole core, what its interpreter lock
costs, and how GPUs share memory: memory "of a GPU" is memory of the host here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ....abc import Options
from ....backends.mori import MoriTransferEngineBackend
from ....backends.mori.checks import Machine
from ....backends.probes.rdma import Device, Port
from ....model import Role
from . import words
from .engine import CARDS, IOEngine, IOEngineSession, WakingIOEngine
from .words import MISUSE

__all__ = ["CARDS", "MISUSE", "MoriOnDouble", "MoriOnDouble10", "install", "surface", "uninstall"]

_SHARED = (
    "BackendType",
    "IOEngineConfig",
    "MemoryLocationType",
    "PollCqMode",
    "RdmaBackendConfig",
    "StatusCode",
    "XgmiBackendConfig",
)
_MODULES = ("mori", "mori.cpp", "mori.io")


def surface(api: str) -> dict[str, Any]:
    """What the vendor's module has in an interface, ``1.0`` or ``1.2``."""
    newer = api != "1.0"
    names: dict[str, Any] = {name: getattr(words, name) for name in _SHARED}
    names["IOEngine"] = WakingIOEngine if newer else IOEngine
    names["IOEngineSession"] = IOEngineSession
    names["EngineDesc"] = words.EngineDescWithPid if newer else words.EngineDesc
    names["MemoryDesc"] = words.MemoryDescWithBus if newer else words.MemoryDesc
    names["TransferStatus"] = words.WakingStatus if newer else words.TransferStatus
    return names


def install(api: str = "1.2") -> None:
    """From now on ``import mori.io`` finds the double, in this process."""
    for name in _MODULES:
        module = sys.modules[name] = ModuleType(name)
        module.__dict__.update(surface(api))
    sys.modules["mori"].__path__ = []
    for name in ("cpp", "io"):
        setattr(sys.modules["mori"], name, sys.modules[f"mori.{name}"])


def uninstall() -> None:
    """End what :func:`install` began."""
    for name in _MODULES:
        sys.modules.pop(name, None)


def machine() -> Machine:
    """A machine with what the vendor needs."""
    there = [Device(name, (Port("1", "ACTIVE"),)) for name in CARDS]
    return Machine(
        rdma=lambda _: (there, []),
        version=lambda _: "1.2",
        device_trouble=lambda _: None,
        memlock=lambda: 1 << 63,
    )


class MoriOnDouble(MoriTransferEngineBackend):
    """The connector on the double, under a name of its own, so that a process may have the real one too."""

    name = "MoriOnDouble"
    alias = "mori-on-double"
    api = "1.2"

    def machine(self) -> Machine:
        return machine()

    async def prepare(self, options: Options, role: Role) -> Options:
        install(self.api)
        return await super().prepare(options, role)


class MoriOnDouble10(MoriOnDouble):
    """The same with the 1.0 interface."""

    name = "MoriOnDouble10"
    alias = "mori-on-double-1.0"
    api = "1.0"
