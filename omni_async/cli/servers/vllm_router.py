"""The proxy that stands before prefill and decode instances of vLLM, as PyPI has it.

In: a policy. Out: a router on this host that waits for instances to tell it of themselves.
Never: listens on other addresses than the loopback one.
"""

from __future__ import annotations

import importlib.util
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

from ...errors import BackendUnavailable
from .running import LOOPBACK, Running

CONNECTOR = "moriio"


class VllmRouter(Running):
    """``vllm-router`` with its MoRI-IO control plane, which is the one that a ``KVInstance`` speaks.

    Args:
        policy: by which it chooses. The router's own, ``cache_aware``, asks every instance about every
            prompt first.
    """

    name = "vllm-router"

    def __init__(self, policy: str = "round_robin") -> None:
        super().__init__()
        self._policy = policy

    @property
    def url(self) -> str:
        """Where it takes completions."""
        return f"http://{LOOPBACK}:{self.port('http')}"

    @property
    def ping_port(self) -> int:
        """Where instances tell it of themselves."""
        return self.port("ping")

    def command(self) -> Sequence[str]:
        if importlib.util.find_spec("vllm_router") is None:
            raise BackendUnavailable(
                "there is no vllm_router",
                backend=CONNECTOR,
                remedy="pip install vllm-router==0.1.17",
            )
        # Metrics: by default there is one port for all routers of a host.
        return [
            *(sys.executable, "-m", "vllm_router.launch_router"),
            *("--host", LOOPBACK, "--port", str(self.port("http"))),
            *("--vllm-pd-disaggregation", "--kv-connector", CONNECTOR, "--policy", self._policy),
            *("--vllm-discovery-address", f"{LOOPBACK}:{self.ping_port}"),
            *("--prometheus-host", LOOPBACK, "--prometheus-port", str(self.port("metrics"))),
        ]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except urllib.error.HTTPError:  # it has no healthy instance yet
            return True
        except OSError:
            return False
