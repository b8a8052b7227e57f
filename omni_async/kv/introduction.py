"""What a rank tells of itself in the handshake.

In: its layout, its place, what moves its bytes. Out: what its handshake port answers.
Never: tells addresses of memory: who is to reach it hears of that on the line.
"""

from __future__ import annotations

import msgspec

from ..model import Endpoint
from ..rendezvous.zmq_address import HostPort
from .control import AgentMetadata, OwnMetadata, ZmqAddress
from .control.metadata import Layers
from .layout import KVLayout


def introduced(
    address: ZmqAddress,
    layout: KVLayout,
    dp: tuple[int, int],
    backend: str,
    where: HostPort | Endpoint | None = None,
    modes: tuple[str, ...] = (),
) -> tuple[AgentMetadata, Layers]:
    """Both messages of an answer.

    Args:
        dp: rank and size.
        backend: connector that moves the bytes.
        where: what consumers dial, at a rank that produces.
        modes: in which it does.
    """
    own = OwnMetadata(
        layout=msgspec.to_builtins(layout),
        backend=backend,
        transport=str(where) if isinstance(where, HostPort) else "",
        endpoint=where if isinstance(where, Endpoint) else None,
        tp_size=layout.tp_size,
        tp_rank=layout.tp_rank,
        dp_size=dp[1],
        dp_rank=dp[0],
        modes=modes,
    )
    metadata = AgentMetadata(
        engine_id=address.engine_id,
        num_blocks=layout.num_blocks,
        block_len=layout.block_nbytes,
        attn_backend_name=layout.form,
        omni_async=own,
    )
    return metadata, {f"layers.{layer}": [b""] for layer in range(layout.layers)}
