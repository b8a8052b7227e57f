"""Instances of one process, as a proxy has them: what it knows of each, and what it sends them.

In: free ports, a namespace, a backend. Out: instances that find each other, the params of a request's two legs.
Never: asks a proxy that is there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from omni_async.cli.free_ports import FreePorts
from omni_async.kv.control import Registered, new_request_id, write_legs
from omni_async.kv.control.options import EXTRA
from omni_async.kv.instance import KVInstance
from omni_async.kv.prefill import Prefill
from omni_async.kv.progress import KVProgress
from tests.kv.nodes import Node

HOST = "127.0.0.1"
RANKS = 2
ROLES = {"P": "kv_producer", "D": "kv_consumer", "PD": "kv_both"}


class House:
    """Instances of one test, and what a proxy knows of them."""

    def __init__(self, ports: FreePorts, namespace: str, backend: str, mode: str) -> None:
        self.ports = ports
        self.namespace = namespace
        self.backend = backend
        self.mode = mode
        self._count = 0

    def config(self, role: str, name: str, **extra: Any) -> dict[str, Any]:
        base = {
            "host_ip": HOST,
            "handshake_port": self.ports.run_of((name, "handshake"), RANKS),
            "notify_port": self.ports.run_of((name, "notify"), RANKS),
            "read_mode": self.mode == "read",
            "backend": self.backend,
            "defer_timeout": 20,
            "handshake_timeout": 10,
        }
        return {"kv_role": ROLES[role], EXTRA: {**base, **extra}}

    def open(self, role: str, node: Node, name: str | None = None, **options: Any) -> KVInstance:
        extra = options.pop("extra", {})
        config = self.config(role, name or role, **extra)
        return KVInstance(config, node.layout, node.caches, namespace=self.namespace, **options)

    def legs(self, prefill: KVInstance, decode: KVInstance) -> tuple[Any, Any, str]:
        """Params of both requests of a write, and an id."""
        self._count += 1
        made = write_legs(f"tx-{self._count}", self.known("P", prefill), self.known("D", decode))
        return (*made, f"cmpl-{new_request_id(prefill.address, decode.address)}-0")

    def known(self, role: Any, instance: KVInstance) -> Registered:
        return Registered(
            type=role,
            http_address=f"{HOST}:1",
            zmq_address=str(instance.address),
            transfer_mode="WRITE",
            tp_size=instance.layout.tp_size,
            dp_size=instance.dp_size,
        )


async def computed(job: Prefill | None, layers: int = 3) -> dict[str, Any] | None:
    assert job is not None
    for layer in range(layers):
        job.layer_ready(layer)
    answer = await job.seal()
    return None if answer is None else json.loads(json.dumps(answer))


async def whole(progress: KVProgress | None) -> None:
    assert progress is not None
    await progress.all()


@contextlib.asynccontextmanager
async def both(
    house: House, source: Node, target: Node, **extra: Any
) -> AsyncIterator[tuple[KVInstance, KVInstance]]:
    async with (
        house.open("P", source, extra=extra) as prefill,
        house.open("D", target, extra=extra) as decode,
    ):
        yield prefill, decode
