"""Options of ``SharedMemoryConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system.
"""

from __future__ import annotations

from typing import Literal

from ...abc.options import Options, option


class SharedMemoryOptions(Options):
    """Shared memory needs no options; these are for containers and for limits."""

    inline_limit: int = option(
        8192,
        "Largest payload that rides inside its offer instead of shared memory.",
        unit="bytes",
        ge=0,
        le=1 << 20,
    )
    socket_dir: str | None = option(
        None,
        "Folder for the socket, for containers that share a folder but no network namespace; by "
        "default an abstract socket without a file.",
        edge_wide=True,
        min_length=1,
    )

    peer: Literal["omni-async", "vllm-omni"] = option(
        "omni-async",
        "Whose payloads this edge has. With `vllm-omni` the other end may be a stage of vLLM-Omni 0.30: named "
        "segments in `/dev/shm` under its keys, without a namespace, in its object format.",
        edge_wide=True,
    )

    @property
    def cross_host(self) -> bool:
        return False
