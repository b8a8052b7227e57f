"""The master of Mooncake's store, as its wheel brings it.

In: nothing. Out: a master on this host, and what connectors are told of it.
Never: listens on other addresses than the loopback one, unless a metadata service is asked for.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from ...model import Role
from .running import LOOPBACK, Server, program

NAME = "MooncakeStoreConnector"
_REMEDY = "pip install 'omni-async[mooncake]'"


class MooncakeMaster(Server):
    """``mooncake_master``.

    Args:
        options: more of its options, such as ``--client_ttl=3``.
        metadata: with its HTTP metadata service. That one listens on every address, whatever it is told;
            without it clients find each other by themselves.
        segment: what each sender lends to the store, in bytes.
    """

    name = "mooncake_master"

    def __init__(self, *options: str, metadata: bool = False, segment: int = 512 << 20) -> None:
        super().__init__()
        self._options = options
        self._metadata = metadata
        self._segment = segment

    @property
    def address(self) -> str:
        """What the option ``master`` is told."""
        return f"{LOOPBACK}:{self.port('rpc')}"

    @property
    def metadata_server(self) -> str:
        """What the option ``metadata_server`` is told."""
        if not self._metadata:
            return "P2PHANDSHAKE"
        return f"http://{LOOPBACK}:{self.port('metadata')}/metadata"

    def command(self) -> Sequence[str]:
        found = [
            program("mooncake_master", backend=NAME, remedy=_REMEDY),
            f"--rpc_address={LOOPBACK}",
            f"--rpc_port={self.port('rpc')}",
            f"--metrics_host={LOOPBACK}",
            f"--metrics_port={self.port('metrics')}",
            "--logtostderr",
        ]
        if self._metadata:
            found += [
                "--enable_http_metadata_server=true",
                f"--http_metadata_server_host={LOOPBACK}",
                f"--http_metadata_server_port={self.port('metadata')}",
            ]
        return [*found, *self._options]

    def answers(self) -> bool:
        try:
            return b'"service_ready":true' in self._ask("health")
        except (OSError, urllib.error.URLError):
            return False

    def extra(self, role: Role) -> dict[str, Any]:
        return {
            "host": LOOPBACK,
            "master": self.address,
            "metadata_server": self.metadata_server,
            "segment": self._segment if role == "sender" else 0,
        }

    def figures(self) -> dict[str, float]:
        """Its metrics without labels, by name: ``master_allocated_bytes``, ``master_key_count``."""
        found: dict[str, float] = {}
        for line in self._ask("metrics").decode().splitlines():
            name, _, value = line.partition(" ")
            if value and name.isidentifier():
                found[name] = float(value)
        return found

    def _ask(self, what: str) -> bytes:
        url = f"http://{LOOPBACK}:{self.port('metrics')}/{what}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            told: bytes = answer.read()
        return told
