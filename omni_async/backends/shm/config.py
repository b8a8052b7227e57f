"""Options of ``SharedMemoryConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system.
"""

from __future__ import annotations

import pydantic

from ...abc import Options


class SharedMemoryOptions(Options):
    """Shared memory needs no options; these are for containers and for limits."""

    inline_limit: int = pydantic.Field(
        default=8192,
        ge=0,
        le=1 << 20,
        description="Largest payload in bytes that rides inside its offer instead of shared memory.",
    )
    socket_dir: str | None = pydantic.Field(
        default=None,
        min_length=1,
        description="Folder for the socket, for containers that share a folder but no network "
        "namespace; by default an abstract socket without a file.",
    )
