"""Options of ``SharedMemoryConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system.
"""

from __future__ import annotations

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

    @property
    def cross_host(self) -> bool:
        return False
