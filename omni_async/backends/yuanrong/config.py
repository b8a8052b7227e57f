"""Options of ``YuanrongConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from ...abc.hosts import checked_host
from ...abc.options import PORT_SAID, Port, StoreOptions, option


class YuanrongOptions(StoreOptions):
    """A store keeps the bytes under the key: openYuanrong's datasystem."""

    host: Annotated[str, AfterValidator(checked_host)] = option(
        "127.0.0.1",
        "Host of the datasystem's worker that this end talks to, usually one of its own host.",
        said="a host name or an address",
        min_length=1,
    )
    port: Port = option(35001, "Port of that worker.", said=PORT_SAID)
    get_sub_timeout_ms: int = option(
        1000,
        "How long the datasystem may wait for a key that is not there yet, per question asked; "
        "0 asks without waiting.",
        unit="milliseconds",
        ge=0,
    )
    req_timeout_ms: int = option(
        5000,
        "How long the worker may take to answer a request.",
        unit="milliseconds",
        gt=0,
    )
