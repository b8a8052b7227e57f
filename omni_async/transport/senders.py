"""Where a receiver's senders are: told by metadata or a call, configured, or known by their names.

In: what a caller, a deploy file and a control plane have said. Out: an address for a dialer.
Never: connects, asks a name service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from ..model import Endpoint, TransferKey
from .wiring import Wiring


class Senders:
    """What one receiver knows of them."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._told: dict[int | None, str] = {}
        self._expected: dict[str, tuple[int, int]] = {}
        """Rank and replica of the sender, where they are not this receiver's own."""

    def update(self, host: str, port: int, rank: int | None) -> None:
        """Where the sender (of a rank) is from now on."""
        self._told[rank] = address(host, port)

    def expect(self, stage: str, rank: int, replica: int) -> None:
        """Which endpoint of a stage sends here."""
        self._expected[stage] = (rank, replica)

    def address_of(self, where: TransferKey, metadata: Mapping[str, Any] | None) -> str:
        """Metadata first, then what was configured or told, then what the endpoint's name says.

        Raises:
            UsageError: none of them says it.
        """
        me = self._wiring.endpoint
        if metadata:
            return address(metadata.get("source_host"), metadata.get("source_port"))
        for rank in (me.rank, None):
            if rank in self._told:
                return self._told[rank]
        own = (me.rank, me.replica)
        sender = Endpoint(
            me.namespace, where.from_stage, *self._expected.get(where.from_stage, own)
        )
        found = self._wiring.channels.address_of(sender)
        if found is None:
            raise UsageError(
                f"get on {where.edge}: the sender's address is not known; pass metadata, configure "
                "sender_host and sender_zmq_port, or call update_sender_info"
            )
        return found


def address(host: object, port: object) -> str:
    """What a dialer takes, of the two words that a control plane or a caller gave."""
    if (
        not isinstance(host, str)
        or not host
        or not isinstance(port, int)
        or isinstance(port, bool)
        or not 0 <= port <= 65535
    ):
        raise UsageError(
            "a sender has a host (str) and a port (int), in metadata as source_host and "
            f"source_port, not {host!r} and {port!r}"
        )
    if "://" in host or host.startswith(("unix:", "local:")):
        return host
    return f"tcp://{host}:{port}"
