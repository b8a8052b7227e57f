"""``open_transport``: from a connector's name to an open transport.

In: a spec, a role, the endpoint's coordinates. Out: a transport inside ``async with``.
Never: opens anything before ``__aenter__``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import pydantic

from ..abc import DirectBackend, Options, StoreBackend
from ..errors import ConfigError, UsageError
from ..model import ConnectorSpec, Endpoint, Role
from ..registry import backend_for
from .arguments import is_text, stage_name
from .base import Transport
from .direct_transport import DirectTransport
from .store_transport import open_store

NAMESPACE_VARIABLE = "OMNI_ASYNC_NAMESPACE"

_LAST = (1 << 31) - 1
"""Largest rank and replica."""


def open_transport(
    spec: str | Mapping[str, Any] | ConnectorSpec,
    *,
    role: Role,
    stage: str | int,
    namespace: str | None = None,
    rank: int = 0,
    replica: int = 0,
    linger: float = 5.0,
) -> OpenTransport:
    """One endpoint of a pipeline, opened by ``async with``.

    Args:
        spec: a connector as in a deploy YAML (``{"name": ..., "extra": {...}}``), a
            :class:`ConnectorSpec`, or a short alias such as ``"shm"``.
        role: ``"sender"`` binds, ``"receiver"`` connects; either side may start first.
        stage: own stage id.
        namespace: one running pipeline; default ``$OMNI_ASYNC_NAMESPACE`` or ``"default"``.
        rank, replica: tensor-parallel rank and data-parallel replica of this endpoint.
        linger: seconds that leaving waits for what nobody has fetched yet.

    Raises:
        ConfigError: unknown connector or option.
        UsageError: an argument that makes no sense. On entering: another sender has this endpoint.
        BackendUnavailable: the connector is planned, but not part of this release. On entering: the
            backend cannot run here; says what to do.
    """
    if role not in ("sender", "receiver"):
        raise UsageError(f"role must be 'sender' or 'receiver', not {role!r}")
    own = stage_name(stage)
    for name, number in (("rank", rank), ("replica", replica)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _LAST:
            raise UsageError(f"{name} must be an int from 0 to {_LAST}, not {number!r}")
    if isinstance(linger, bool) or not isinstance(linger, (int, float)) or not linger >= 0:
        raise UsageError(f"linger must be seconds of at least 0, not {linger!r}")
    if namespace is None:
        namespace = os.environ.get(NAMESPACE_VARIABLE) or "default"
    if not isinstance(namespace, str) or not is_text(namespace):
        raise UsageError(f"namespace must be a non-empty str, not {namespace!r}")
    connector = connector_spec(spec)
    named = backend_for(connector.name)
    backend, options = named.facing(checked_options(named.options, connector))
    endpoint = Endpoint(namespace, own, rank, replica)
    return OpenTransport(backend, options, endpoint, role, 1e9 if math.isinf(linger) else linger)


class OpenTransport:
    """What :func:`open_transport` returns: nothing is open until it is entered."""

    def __init__(
        self, backend: Any, options: Options, endpoint: Endpoint, role: Role, linger: float
    ) -> None:
        self._make = (backend, options, endpoint, role, linger)
        self._transport: Transport | None = None

    def __enter__(self) -> Transport:
        raise UsageError("a transport is opened by 'async with open_transport(...)'")

    def __exit__(self, *raised: object) -> None:
        """Never reached; without it Python would name this method instead of the mistake."""

    async def __aenter__(self) -> Transport:
        if self._transport is not None:
            raise UsageError("this transport was entered before; call open_transport again")
        backend, options, endpoint, role, linger = self._make
        options = await backend.prepare(options, role)
        if isinstance(backend, DirectBackend):
            direct = DirectTransport(backend, options, endpoint, role, linger)
            await direct.open()
            self._transport = direct
        elif isinstance(backend, StoreBackend):
            self._transport = await open_store(backend, options, endpoint, role, linger)
        else:
            raise ConfigError(f"backend {backend!r} offers no transport")
        return self._transport

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._transport is not None:
            await self._transport.__aexit__(kind, error, trace)


def connector_spec(spec: object) -> ConnectorSpec:
    """A connector as a :class:`ConnectorSpec`, whichever way it was written."""
    if isinstance(spec, ConnectorSpec):
        spec = {"name": spec.name, "extra": spec.extra}  # its fields are not checked by type
    if isinstance(spec, str):
        return ConnectorSpec(spec)
    if isinstance(spec, Mapping):
        unknown = set(spec) - {"name", "extra"}
        name, extra = spec.get("name"), spec.get("extra")
        if unknown or not isinstance(name, str):
            raise ConfigError(f"a connector has a name and an extra, this one is {dict(spec)!r}")
        if extra is not None and not isinstance(extra, Mapping):
            raise ConfigError(f"extra of {name} must be a mapping, not {extra!r}", path="extra")
        return ConnectorSpec(name, dict(extra or {}))
    raise UsageError(f"a connector is a name, a mapping or a ConnectorSpec, not {spec!r}")


def checked_options(model: type[Options], connector: ConnectorSpec) -> Options:
    """The connector's ``extra``, validated.

    Raises:
        ConfigError: every mistake, with its path and the known options.
    """
    try:
        return model.model_validate(connector.extra)
    except pydantic.ValidationError as error:
        lines = []
        for problem in error.errors():
            path = ".".join(["extra", *map(str, problem["loc"])])
            lines.append(f"{path}: {problem['msg']}")
        known = ", ".join(sorted(model.model_fields))
        raise ConfigError(
            f"{connector.name}: {'; '.join(lines)}. Known options: {known}", path="extra"
        ) from None
