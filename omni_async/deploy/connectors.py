"""Connectors as a deploy file names them, checked against what the backends know.

In: ``name`` and ``extra``. Out: a Connector whose options its backend's model has accepted.
Never: opens a backend, imports a vendor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import registry
from ..abc import Options
from ..errors import ConfigError
from ..model import ConnectorSpec
from .environment import typed
from .knobs import KNOBS, judge, validate
from .mistakes import Mistakes, hint
from .models import ConnectorModel
from .tree import DEFAULT as BY_DEFAULT
from .tree import Origin, Place

DEFAULT = "SharedMemoryConnector"
"""What moves bytes along an edge that names nothing."""


@dataclass(frozen=True)
class Connector:
    """A connector as one end of an edge uses it."""

    name: str
    settings: Options
    """All options of its backend, with defaults."""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """What stage processors read, such as ``codec_chunk_frames``; no backend sees it."""
    alias: str | None = None
    """Its name under ``connectors``, ``None`` when written in place or filled in."""
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Where each option and knob was written; the others have their defaults."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that were written, as a file has them."""
        written = self.settings.model_dump(exclude_unset=True)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in written.items()}

    @property
    def spec(self) -> ConnectorSpec:
        """What :func:`omni_async.open_transport` takes."""
        return ConnectorSpec(self.name, self.options)

    @property
    def addressed(self) -> bool:
        """Whether its receiver is told a host and a port."""
        return self.settings.addressed

    @property
    def cross_host(self) -> bool:
        """Whether its two ends may be on different hosts."""
        return self.settings.cross_host

    def origin(self, key: str) -> Origin:
        """Where an option or a knob comes from."""
        return self.origins.get(key, BY_DEFAULT)


def filled_in() -> Connector:
    """The connector of an edge that names none."""
    return Connector(DEFAULT, registry.options_for(DEFAULT)())


def check(
    model: ConnectorModel, alias: str | None, place: Place, mistakes: Mistakes
) -> Connector | None:
    """The connector, or ``None`` with the reason in ``mistakes``."""
    try:
        options = registry.options_for(model.name)
    except ConfigError:
        if model.name in registry.names():  # announced, and broken
            raise
        text = f"unknown connector {model.name!r}" + hint(model.name, known_names())
        mistakes.add((*place, "name"), text)
        return None
    if "role" in model.extra:
        text = "who sends and who receives follows from the wiring; remove this line"
        mistakes.add((*place, "extra", "role"), text)
        return None
    known = {key: value for key, value in model.extra.items() if key in options.model_fields}
    knobs = {key: value for key, value in model.extra.items() if key not in known}
    for key in knobs:
        slip = judge(key, options)
        if slip is not None:
            mistakes.add((*place, "extra", key), slip)
    origins = {key: mistakes.origin((*place, "extra", key)) for key in model.extra}
    lax = {key for key, origin in origins.items() if origin.kind == "environment"}
    for key in lax & knobs.keys():
        if not (key in KNOBS and KNOBS[key].kind.startswith("text")):
            knobs[key] = typed(knobs[key])
    settings, wrong = validate(options, known, lax)
    for below, text in wrong:
        mistakes.add((*place, "extra", *below), text)
    if settings is None:
        return None
    return Connector(registry.canonical(model.name), settings, knobs, alias, origins)


def known_names() -> list[str]:
    """Every name a file may use."""
    return sorted({*registry.names(), *registry.planned_names()})


def differing(one: Connector, other: Connector) -> list[str]:
    """Options in which both ends of an edge have to agree, and do not."""
    here, there = one.settings.edge_values(), other.settings.edge_values()
    return sorted(key for key in here if here[key] != there.get(key))
