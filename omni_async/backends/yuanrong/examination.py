"""What the doctor is told of the datasystem.

In: options. Out: findings.
Never: runs beside a transport: the vendor's client keeps the GIL while it waits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from ...abc import Finding
from ...abc.findings import fault, ok
from ..machine import version_of
from ._native import Client, Refused, load
from .config import YuanrongOptions
from .store import INSTALL, how_to_start

PACKAGE = "openyuanrong-datasystem"
PATIENCE = 3.0
"""Seconds for the worker."""


def findings(options: YuanrongOptions) -> Iterator[Finding]:
    """Whether the client can be loaded, and its worker answers; blocks."""
    version = version_of(PACKAGE)
    try:
        load()
    except Refused as error:
        yield fault(
            "package", f"the client cannot be loaded ({error})", INSTALL, absent=version is None
        )
        loaded = False
    else:
        yield ok("package", f"{PACKAGE} {version}" if version else "the client is here")
        loaded = True
    yield _worker(options, loaded=loaded)


def _worker(options: YuanrongOptions, *, loaded: bool) -> Finding:
    where = f"{options.host}:{options.port}"
    remedy = f"start it: {how_to_start(options)}; or correct `host` and `port`"
    try:
        socket.create_connection((options.host, options.port), PATIENCE).close()
    except OSError as error:
        return fault("worker", f"nobody answers at {where} ({error})", remedy, absent=True)
    if not loaded:
        return ok("worker", f"somebody listens at {where}")
    client = Client(options.host, options.port, int(PATIENCE * 1000), options.evictable)
    try:
        client.connect(time.monotonic() + PATIENCE)
    except Refused as error:
        why = error.status or error.kind
        seen = (
            f"who listens at {where} does not answer as a worker ({why}): it is stopped, or another"
        )
        return fault("worker", seen, remedy)
    return ok("worker", f"{where} answers")
