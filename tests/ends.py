"""The ends of one pipeline, here and in processes that a test leads.

In: a connector, a namespace, options. Out: open transports that find each other, by name or by port.
Never: takes a port that somebody else may get; leaves a process behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import omni_async
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.on_this_host import LOOPBACK as HOST
from omni_async.cli.on_this_host import extra_here
from omni_async.model import Role
from omni_async.registry import options_for
from omni_async.testing.peer import register
from omni_async.testing.processes import PeerProcess
from omni_async.testing.sides import RemoteSide
from tests.engines import need_mooncake, need_nixl

DOUBLES = {"mori-on-double": "omni_async.testing.doubles.mori:MoriOnDouble"}
"""Connectors that run on doubles, and where they are."""

__all__ = ["HOST", "Ends", "ends", "led"]


class Ends:
    """Opens senders and receivers; where receivers are told so, each sender has a port of its own.

    Args:
        extra: options of both ends.
    """

    def __init__(self, connector: str, namespace: str, ports: FreePorts, **extra: Any) -> None:
        self.connector = connector
        self.namespace = namespace
        self.addressed = options_for(connector).addressed
        self.ports = ports
        self._extra = extra

    def port(self, stage: str = "0", rank: int = 0) -> int:
        """Where that sender listens, also before it is there and after it has gone."""
        return self.ports.of((stage, rank))

    def move(self, stage: str = "0", rank: int = 0) -> int:
        """Let the next such sender listen at another port; returns it."""
        return self.ports.anew((stage, rank))

    def at(self, stage: str = "0", rank: int = 0) -> dict[str, Any]:
        """Metadata that lead to that sender."""
        return {"source_host": HOST, "source_port": self.port(stage, rank)}

    def options(
        self, role: Role, stage: str, *, rank: int = 0, sender: str = "0", **extra: Any
    ) -> dict[str, Any]:
        """What ``open_transport`` takes, ``extra`` included."""
        port = self.port(stage if role == "sender" else sender, rank) if self.addressed else 0
        return {
            "extra": {**extra_here(self.connector, role, port), **self._extra, **extra},
            "role": role,
            "stage": stage,
            "rank": rank,
            "namespace": self.namespace,
            "linger": 0.0,
        }

    def open(self, role: Role, stage: str, **options: Any) -> Any:
        """A transport of this process, to be entered."""
        words = self.options(role, stage, **options)
        spec = {"name": self.connector, "extra": words.pop("extra")}
        return omni_async.open_transport(spec, **words)

    async def away(self, peer: PeerProcess, role: Role, stage: str, **options: Any) -> RemoteSide:
        """One of a process that is led."""
        words = self.options(role, stage, **options)
        if self.connector in DOUBLES:
            words["target"] = DOUBLES[self.connector]
        return await peer.open(f"{role}-{stage}-{words['rank']}", self.connector, **words)


@contextlib.contextmanager
def ends(connector: str, namespace: str, **extra: Any) -> Iterator[Ends]:
    """The ends of a pipeline; skips where the engine is missing."""
    if connector == "mooncake":
        need_mooncake()
    if connector == "nixl":
        need_nixl()
    if connector in DOUBLES:
        register(DOUBLES[connector])
    with FreePorts() as ports:
        yield Ends(connector, namespace, ports, **extra)


@contextlib.asynccontextmanager
async def led() -> AsyncIterator[PeerProcess]:
    """A process of its own."""
    peer = PeerProcess()
    try:
        with peer.attached():
            yield peer
    finally:
        peer.close()
