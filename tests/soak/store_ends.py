"""A store's server of this test alone, and ends over it here and in a process that is led.

In: which store. Out: a server that may be killed, transports.
Never: shares a server with another test.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import omni_async
from omni_async.cli.servers import Server
from omni_async.cli.servers.mooncake import MooncakeMaster
from omni_async.cli.servers.yuanrong import YuanrongWorker
from omni_async.model import Role
from omni_async.testing.processes import PeerProcess
from omni_async.testing.sides import RemoteSide
from tests.stores import loaded_or_skip

MOONCAKE = "mooncake-store"
YUANRONG = "yuanrong"
STORES = (MOONCAKE, YUANRONG)

SEGMENT = 96 << 20
POOL = 48 << 20


class StoreEnds:
    """Opens senders and receivers over one server."""

    def __init__(self, connector: str, server: Server, namespace: str) -> None:
        self.connector = connector
        self.server = server
        self.namespace = namespace

    def options(self, role: Role, **extra: Any) -> dict[str, Any]:
        return {
            "extra": {"memory_pool_size": POOL, **self.server.extra(role), **extra},
            "role": role,
            "stage": "0" if role == "sender" else "1",
            "namespace": self.namespace,
            "linger": 0.0,
        }

    def open(self, role: Role, **extra: Any) -> Any:
        """A transport of this process, to be entered."""
        words = self.options(role, **extra)
        return omni_async.open_transport(
            {"name": self.connector, "extra": words.pop("extra")}, **words
        )

    async def away(self, peer: PeerProcess, role: Role, **extra: Any) -> RemoteSide:
        """One of a process that is led."""
        return await peer.open(role, self.connector, **self.options(role, **extra))

    def kept(self) -> int:
        """Bytes of objects in the store; -1 where its server does not tell."""
        if isinstance(self.server, MooncakeMaster):
            return int(self.server.figures()["master_allocated_bytes"])
        return -1


@contextlib.contextmanager
def store_ends(connector: str, namespace: str) -> Iterator[StoreEnds]:
    """Over a server that lives as long as the block."""
    server: Server
    if connector == MOONCAKE:
        loaded_or_skip("mooncake.store")
        server = MooncakeMaster("--default_kv_lease_ttl=2000", segment=SEGMENT)
    else:
        loaded_or_skip("yr.datasystem.kv_client")
        server = YuanrongWorker("--client_dead_timeout_s=3", memory=256 << 20)
    with server:
        yield StoreEnds(connector, server, namespace)


def resident(pid: int) -> int:
    """Bytes of a process in memory that no file backs, and those of its children; shared ones once."""
    total = _kilobytes(pid, "RssAnon") + _kilobytes(pid, "RssShmem")
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            total += sum(_kilobytes(int(child), "RssAnon") for child in file.read().split())
    return total << 10


def _kilobytes(pid: int, field: str) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))
