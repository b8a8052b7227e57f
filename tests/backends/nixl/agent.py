"""An engine in an interpreter of its own, led by a test: ``python -m tests.backends.nixl.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import os
from typing import Any

from omni_async.backends.nixl._native import Agent as NixlAgent
from omni_async.backends.nixl.engine import NixlEngine
from tests.backends.engine_agent import EngineAgent
from tests.cases.orders import follow


class Agent(EngineAgent):
    """By UCX, with the transports it is told to take."""

    engine: NixlEngine
    refuses = False

    def make_engine(self, job: dict[str, Any]) -> NixlEngine:
        if job.get("tls"):
            os.environ["UCX_TLS"] = job["tls"]
        agent = NixlAgent("test", ["UCX"], 0, answers=job["role"] == "receiver")
        if job.get("name"):
            agent.name = job["name"]
        return NixlEngine(agent, job["role"], "cpu", ["UCX"], pins=False)

    async def do_under_way(self) -> Any:
        return len(self.engine._watch)


if __name__ == "__main__":
    follow(Agent)
