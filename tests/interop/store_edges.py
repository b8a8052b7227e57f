"""A store's server, vLLM-Omni's connector to it in another process, and ours in the tests'."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import omni_async
from omni_async.cli.bench.peer_vendors import MOONCAKE_STORE
from omni_async.cli.servers import Server
from omni_async.cli.servers.mooncake import MooncakeMaster
from omni_async.cli.servers.yuanrong import YuanrongWorker
from omni_async.model import Role

from .child import Child

SEGMENT = 256 << 20
LARGEST = 256 << 20
"""Bytes of the buffer that their payloads have to fit through; 64 MB unless they are told."""
LEASE_MS = 500
"""For how long an object cannot be deleted after somebody has read it; 10 s unless the master is told."""


class Edge:
    """Ends over one server."""

    def __init__(self, name: str, server: Server, theirs: Child) -> None:
        self.name = name
        self.server = server
        self.theirs = theirs
        plain = name != MOONCAKE_STORE
        """Whether the store takes only some characters."""
        self.odd_keys = [] if plain else ["a/b c.d", "sch\u00f6n \U0001f600", "k" * 1000, "\n"]
        self.refused_keys = ["a/b", "a b", "a.b", "\u00f6", "k" * 300] if plain else []

    def sender(self, namespace: str, **options: Any) -> Any:
        return self._open("sender", "0", namespace, linger=0, **options)

    def receiver(self, namespace: str, **options: Any) -> Any:
        return self._open("receiver", "1", namespace, **options)

    def _open(
        self, role: Role, stage: str, namespace: str, rank: int = 0, linger: float = 0, **extra: Any
    ) -> Any:
        words = {"peer": "vllm-omni", **self.server.extra(role), **extra}
        return omni_async.open_transport(
            {"name": self.name, "extra": words},
            role=role,
            stage=stage,
            rank=rank,
            namespace=namespace,
            linger=linger,
        )


@contextlib.contextmanager
def edge_over(name: str, wheel: Path) -> Iterator[Edge]:
    """Both, until the end of the block."""
    with _server(name) as server:
        extra = {**server.extra("sender"), "localbuf": LARGEST}
        theirs = Child("store_connector", str(wheel), name, extra)
        try:
            theirs.call("health")
            yield Edge(name, server, theirs)
        finally:
            theirs.close()


def _server(name: str) -> Server:
    if name == MOONCAKE_STORE:
        return MooncakeMaster(f"--default_kv_lease_ttl={LEASE_MS}", segment=SEGMENT)
    return YuanrongWorker()
