"""Options of ``YuanrongConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

import math
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
    get_sub_timeout_ms: int | None = option(
        None,
        "How long a `get` waits to be offered its payload where its caller says nothing; with 0 without limit. "
        "Not set: 30 s, as on every transport.",
        unit="milliseconds",
        ge=0,
    )
    req_timeout_ms: int = option(
        5000,
        "How long the worker may take to answer a request; a worker that is gone is waited for as long.",
        unit="milliseconds",
        gt=0,
    )

    @property
    def offer_seconds(self) -> float | None:
        if self.get_sub_timeout_ms is None:
            return super().offer_seconds
        return self.get_sub_timeout_ms / 1000 or math.inf
