"""The real vllm-router and instances behind it, each in processes of its own, all on this host.

In: how many, over what, in which mode. Out: a router's URL; processes that can be killed, restarted and added.
Never: outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from omni_async.cli.on_this_host import anywhere
from omni_async.cli.servers.running import LOOPBACK, Running
from omni_async.cli.servers.vllm_router import VllmRouter
from omni_async.registry import options_for

Role = Literal["prefill", "decode"]
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_DEFER = 10
"""Seconds for which prefill keeps blocks when decode does not come, such as one that was killed."""
_ROOT = Path(__file__).parents[2]


class Plan(NamedTuple):
    """What is started."""

    backend: str = "shm"
    mode: Literal["write", "read"] = "write"
    prefill_tp: int = 1
    decode_tp: int = 1
    prefills: int = 1
    decodes: int = 1
    prefill_form: str = "split"
    decode_form: str = "paired"
    prefill_block_size: int = 16
    decode_block_size: int = 8

    def options(self, role: Role) -> list[str]:
        """Of a server, beside its configuration."""
        prefills = role == "prefill"
        return [
            *("--form", self.prefill_form if prefills else self.decode_form),
            *("--block-size", str(self.prefill_block_size if prefills else self.decode_block_size)),
            *("--tensor-parallel-size", str(self.tp(role))),
        ]

    def tp(self, role: Role) -> int:
        """Ranks of an instance."""
        return self.prefill_tp if role == "prefill" else self.decode_tp


class Instance(Running):
    """A prefill or a decode instance with all of its ranks."""

    def __init__(self, role: Role, number: int, plan: Plan, ping_port: int, namespace: str) -> None:
        super().__init__()
        self.role: Role = role
        self.name = f"{role} {number}"
        self._plan = plan
        self._ping_port = ping_port
        self._namespace = namespace

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port('http')}"

    @property
    def config(self) -> dict[str, Any]:
        """``kv_transfer_config``, as vLLM takes it."""
        plan, ranks = self._plan, self._plan.tp(self.role)
        extra = {
            "proxy_ip": LOOPBACK,
            "proxy_ping_port": self._ping_port,
            "http_port": self.port("http"),
            "host_ip": LOOPBACK,
            "handshake_port": self._ports.run_of("handshake", ranks),
            "notify_port": self._ports.run_of("notify", ranks),
            "read_mode": plan.mode == "read",
            "backend": plan.backend,
            "backend_options": anywhere(options_for(plan.backend)),
            "trusted_remote_hosts": [LOOPBACK],
            "defer_timeout": _DEFER,
        }
        return {
            "kv_connector": "MoRIIOConnector",
            "kv_role": _ROLES[self.role],
            "kv_connector_extra_config": extra,
        }

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "examples.pd_disaggregation.server"),
            *("--kv-transfer-config", json.dumps(self.config), "--namespace", self._namespace),
            *self._plan.options(self.role),
        ]

    def environment(self) -> Mapping[str, str]:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except OSError:
            return False


class Cluster:
    """Use as a context manager: all processes have begun then, and :meth:`wait` waits for them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.router = VllmRouter()
        self.instances: list[Instance] = []
        self.namespace = f"pd-{uuid.uuid4().hex[:12]}"
        self._stack = ExitStack()

    def add(self, role: Role) -> Instance:
        """One more begins; on the main thread, since it ends with the thread that has begun it."""
        number = sum(instance.role == role for instance in self.instances)
        instance = Instance(role, number, self.plan, self.router.ping_port, self.namespace)
        self._stack.callback(instance.close)
        instance.begin()
        self.instances.append(instance)
        return instance

    def of(self, role: Role) -> list[Instance]:
        return [instance for instance in self.instances if instance.role == role]

    def wait(self, timeout: float = 90.0) -> None:
        """Until all of them answer: on a machine with other things to do, Python may take long to start.

        Raises:
            ServerFailed: one has ended; with the end of what it wrote.
        """
        for one in (self.router, *self.instances):
            one.wait(timeout)

    def __enter__(self) -> Cluster:
        with self._stack as stack:
            stack.callback(self.router.close)
            self.router.begin()
            for _ in range(self.plan.prefills):
                self.add("prefill")
            for _ in range(self.plan.decodes):
                self.add("decode")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (self.router, *self.instances):  # all at once: nobody waits for who has gone
            one.kill()
        self._stack.close()
