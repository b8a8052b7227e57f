"""An engine in an interpreter of its own, led by a test: ``python -m tests.backends.mooncake.agent FD``.

In: orders on a socket. Out: what came of each, errors by name and text.
Never: acts by itself.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from omni_async.backends.mooncake._native import shared_engine
from omni_async.backends.mooncake.engine import MooncakeEngine
from tests.backends.engine_agent import EngineAgent
from tests.cases.orders import follow


class Agent(EngineAgent):
    """Over TCP."""

    engine: MooncakeEngine

    def make_engine(self, job: dict[str, Any]) -> MooncakeEngine:
        native = shared_engine(job.get("host", "127.0.0.1"), "tcp", "")
        return MooncakeEngine(native, job["role"], "cpu", pins=False)

    async def do_cut(self) -> Any:
        """End all connections that others have made to this engine; how many."""
        cut = 0
        for number in os.listdir("/proc/self/fd"):
            try:
                sock = socket.socket(fileno=os.dup(int(number)))
            except OSError:
                continue
            with sock:
                if (
                    sock.family == socket.AF_INET6
                    and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
                ):
                    sock.shutdown(socket.SHUT_RDWR)
                    cut += 1
        return cut

    async def do_age(self, peer: str, seconds: float) -> Any:
        """Let the last write to the peer be that much longer ago."""
        self.engine._contacts[peer]._used -= seconds


if __name__ == "__main__":
    follow(Agent)
