"""The engine over TCP alone, as between two hosts.

In: nothing. Out: a backend by the name ``nixl-over-tcp``.
Never: changes what other transports of the process use.
"""

from __future__ import annotations

from omni_async.abc import Options
from omni_async.backends.environment import environment
from omni_async.backends.nixl.backend import NixlBackend
from omni_async.model import Role


class NixlOverTcp(NixlBackend):
    name = "NixlOverTcp"
    alias = "nixl-over-tcp"

    async def prepare(self, options: Options, role: Role) -> Options:
        with environment({"UCX_TLS": "tcp"}):  # read whenever an agent is made
            return await super().prepare(options, role)
