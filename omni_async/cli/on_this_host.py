"""Options with which a backend runs between processes of one host, without hardware of its own.

In: a connector's name, a role, a port that is kept for its sender. Out: ``extra``; whether it runs here at all.
Never: opens a transport.
"""

from __future__ import annotations

from typing import Any

import pydantic

from .. import registry
from ..abc import Options
from ..errors import BackendUnavailable
from ..model import Role

LOOPBACK = "127.0.0.1"
EVERYWHERE = {"protocol": "tcp"}
"""Options that need no hardware, where a backend has them."""


def anywhere(model: type[Options]) -> dict[str, Any]:
    """Those of :data:`EVERYWHERE` that these options take."""
    return {k: v for k, v in EVERYWHERE.items() if k in model.model_fields and _takes(model, k, v)}


def extra_here(connector: str, role: Role, port: int) -> dict[str, Any]:
    """``extra`` of one end of an edge whose sender listens at ``port``, where it listens at one at all."""
    model = registry.options_for(connector)
    extra = anywhere(model)
    if model.addressed:
        extra["host"] = LOOPBACK
        where = {"sender_host": LOOPBACK, "sender_zmq_port": port}
        extra |= {"zmq_port": port} if role == "sender" else where
    return extra


async def check_here(connector: str, options: Options | None = None) -> None:
    """See that a backend can run here. Cancellation: safe.

    Args:
        options: its options; by default those of :func:`extra_here`.

    Raises:
        BackendUnavailable: a package, library or device is missing; says how to get it.
        ConfigError: nobody has announced it, or the options do not fit this machine.
    """
    backend = registry.backend_for(connector)
    if options is None:
        options = backend.options.model_validate(extra_here(connector, "receiver", 1))
    try:
        await backend.prepare(options, "sender")
    except BackendUnavailable as error:
        remedy = f"; {error.remedy}" if error.remedy else ""
        raise BackendUnavailable(
            f"{error}{remedy}", backend=error.backend, remedy=error.remedy
        ) from error


def _takes(model: type[Options], key: str, value: Any) -> bool:
    try:
        model.model_validate({key: value})
    except pydantic.ValidationError:
        return False
    return True
