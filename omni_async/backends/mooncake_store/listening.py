"""At which TCP ports this process listens.

In: /proc. Out: port numbers.
Never: fails where /proc is not as usual: then there are none.

Without a metadata service a client is known to others by a port that the vendor chose and does not tell.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LISTEN = "0A"


def listening_ports() -> list[int]:
    """All of them."""
    own = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                own.add(os.readlink(f"/proc/self/fd/{fd}"))
    found = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTEN and f"socket:[{inode}]" in own:
                    found.append(int(local.rpartition(":")[2], 16))
    return found
