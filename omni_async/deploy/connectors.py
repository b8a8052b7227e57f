"""Connectors as a deploy file names them, checked against what the backends know.

In: ``name`` and ``extra``. Out: a Connector whose options its backend has accepted.
Never: opens a backend, imports a vendor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

from .. import registry
from ..abc import Backend
from ..errors import BackendUnavailable, ConfigError
from ..model import ConnectorSpec
from .mistakes import Mistakes, Place, hint, nearest
from .models import ConnectorModel

DEFAULT = "SharedMemoryConnector"
"""What moves bytes along an edge that names nothing."""

_LATER_NAMES = tuple(registry.PLANNED.values())
"""Names that files carry and that are right even where no such backend is installed."""

_TYPO = 0.8


@dataclass(frozen=True)
class Connector:
    """A connector as one end of an edge uses it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the backend reads."""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """What stage processors read, such as ``codec_chunk_frames``; no backend sees it."""
    alias: str | None = None
    """Its name under ``connectors``, ``None`` when written in place or filled in."""

    @property
    def spec(self) -> ConnectorSpec:
        """What :func:`omni_async.open_transport` takes."""
        return ConnectorSpec(self.name, dict(self.options))

    @property
    def addressed(self) -> bool:
        """Whether its receiver is told a host and a port."""
        backend = _backend(self.name)
        return backend is not None and "sender_host" in backend.options.model_fields

    @property
    def cross_host(self) -> bool:
        """Whether its two ends may be on different hosts."""
        backend = _backend(self.name)
        if backend is None:
            return True
        options = backend.options.model_validate(dict(self.options))
        return backend.capabilities(options).cross_host


def check(
    model: ConnectorModel, alias: str | None, place: Place, mistakes: Mistakes
) -> Connector | None:
    """The connector, or ``None`` with the reason in ``mistakes``."""
    backend = _backend(model.name)
    if backend is None and model.name not in _LATER_NAMES:
        text = f"unknown connector {model.name!r}" + hint(model.name, known_names())
        mistakes.add((*place, "name"), text)
        return None
    if "role" in model.extra:
        text = "who sends and who receives follows from the wiring; remove this line"
        mistakes.add((*place, "extra", "role"), text)
        return None
    if backend is None:  # nothing here can judge the options; opening it says what is missing
        return Connector(model.name, model.extra, {}, alias)
    options = backend.options
    own = {key: value for key, value in model.extra.items() if key in options.model_fields}
    knobs = {key: value for key, value in model.extra.items() if key not in own}
    for key in knobs:
        meant = nearest(key, options.model_fields, _TYPO)
        if meant is not None:
            mistakes.add((*place, "extra", key), f"unknown option; did you mean {meant!r}?")
    try:
        options.model_validate(own)
    except pydantic.ValidationError as error:
        for detail in error.errors(include_url=False):
            message = detail["msg"].replace("Input should", "has to")
            where = (*place, "extra", *detail["loc"])
            mistakes.add(where, f"{message}, not {detail['input']!r}")
        return None
    return Connector(backend.name, own, knobs, alias)


def known_names() -> list[str]:
    """Every name a file may use."""
    return sorted({*registry.names(), *_LATER_NAMES})


def _backend(name: str) -> Backend | None:
    """The backend of this name, if one is installed. Looks at other packages only when it must."""
    try:
        return registry.backend_for(name)
    except BackendUnavailable:  # planned
        return None
    except ConfigError:
        if name in registry.names():  # announced, and broken
            raise
        return None
