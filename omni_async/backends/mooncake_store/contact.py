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

P2P = "P2PHANDSHAKE"
_CALL = bytes([0x15]) + bytes(19)
"""A call of a function that there is not: whoever speaks the master's protocol answers that. A process that is
stopped accepts connections, but answers nothing."""
_ANSWER = bytes([0x15])


def master_trouble(address: str, timeout: float) -> str | None:
    """Why the master cannot be used; ``None`` where it can. Of a service that elects it: whether it is there."""
    kind, mark, rest = address.partition("://")
    if mark:
        return _nobody(rest, timeout) if kind == "etcd" else None
    try:
        sock = _connected(address, timeout)
    except OSError as error:
        return f"nobody answers at {address} ({error})"
    with sock:
        try:
            sock.sendall(_CALL)
            answer = sock.recv(1)
        except TimeoutError:
            return f"who answers at {address} does not speak as a Mooncake master: it is stopped, or another"
        except OSError:
            answer = b""
    return None if answer == _ANSWER else f"who answers at {address} is no Mooncake master"


def metadata_trouble(address: str, timeout: float) -> str | None:
    """Why the metadata service cannot be used; ``None`` where it can, or none is wanted."""
    if address == P2P:
        return None
    if not address.startswith(("http://", "https://")):
        return _nobody(address.removeprefix("etcd://"), timeout)
    try:
        with urllib.request.urlopen(f"{address}?key=omni-async", timeout=timeout):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return None  # it knows no such key
    except (OSError, ValueError) as error:
        return f"nobody answers at {address} ({getattr(error, 'reason', error)})"


def _nobody(endpoints: str, timeout: float) -> str | None:
    """Why none of several endpoints can be connected to."""
    why = None
    for address in filter(None, re.split("[;,/]", endpoints)):
        try:
            _connected(address, timeout).close()
        except OSError as error:
            why = f"nobody answers at {address} ({error})"
        else:
            return None
    return why


def _connected(address: str, timeout: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise OSError(f"{address!r} has no port") from None
    try:
        return socket.create_connection((host.strip("[]"), number), timeout)
    except OverflowError as error:
        raise OSError(str(error)) from None
