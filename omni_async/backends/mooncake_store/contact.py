"""Whether the store's servers answer, found out before the vendor's client is set up.

In: addresses as options have them. Out: ``None``, or why a server cannot be used.
Never: waits longer than it was told, holds the GIL.

The client's own set-up holds the GIL while it waits, and does not say what it waits for.
"""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request

_CALL = bytes([0x15]) + bytes(19)
"""A call of a function that there is not: whoever speaks the master's protocol answers that. A process that is
stopped accepts connections, but answers nothing."""
_ANSWER = 0x15


def master_trouble(address: str, timeout: float) -> str | None:
    """Why the master cannot be used. ``None`` where it answers, and where others know who it is."""
    if "://" in address:
        return None
    found = re.fullmatch(r"\[?(.*?)\]?:(\d+)", address)
    if found is None:
        return f"the address {address!r} has no port"
    try:
        with socket.create_connection((found[1], int(found[2])), timeout) as sock:
            sock.sendall(_CALL)
            answer = sock.recv(1)
    except TimeoutError:
        return f"nobody answers at {address}, or whoever does is stopped"
    except (OSError, OverflowError) as error:
        return f"nobody answers at {address} ({error})"
    if answer[:1] != bytes([_ANSWER]):
        return f"who answers at {address} is no Mooncake master"
    return None


def metadata_trouble(address: str, timeout: float) -> str | None:
    """Why the metadata service cannot be used. ``None`` where it answers, or is none that speaks HTTP."""
    if not address.startswith(("http://", "https://")):
        return None
    try:
        with urllib.request.urlopen(f"{address}?key=omni-async", timeout=timeout):
            return None
    except urllib.error.HTTPError as error:
        with error:
            # It knows no such key; another 404 would be a page's, in HTML.
            page = "html" in (error.headers.get("Content-Type") or "")
        return f"who answers at {address} is no metadata service" if page else None
    except (OSError, ValueError) as error:
        return f"nobody answers at {address} ({error})"
