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
        "How long vLLM-Omni's connector waits in one look for a key. Here no look waits, and a `get` has "
        "its own deadline, so whatever this is, 0 included, sets no time limit.",
        unit="milliseconds",
        ge=0,
    )
    req_timeout_ms: int = option(
        5000,
        "How long the worker may take to answer a request; a worker that is gone is waited for as long.",
        unit="milliseconds",
        gt=0,
    )
