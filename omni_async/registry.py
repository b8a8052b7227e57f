"""Connector names and aliases to backends.

In: a name from a deploy YAML or a short alias. Out: the backend behind it.
Never: imports a backend that nobody asked for.

Backends of other packages announce themselves by entry points of the group ``omni_async.backends``:
``alias = "package.module:BackendClass"``; the entry point's name is the alias, the class tells the rest.
"""

from __future__ import annotations

import difflib
import importlib
from importlib import metadata

from .abc import Backend
from .errors import BackendUnavailable, ConfigError

GROUP = "omni_async.backends"

_SHIPPED = {
    "shm": ("SharedMemoryConnector", "omni_async.backends.shm:SharedMemoryBackend"),
    "memory": ("MemoryConnector", "omni_async.backends.memory:MemoryBackend"),
}
"""alias → (connector name, where it is)."""

PLANNED = {
    "mooncake": "MooncakeTransferEngineConnector",
    "MooncakeConnector": "MooncakeConnector",  # an older name in deploy files, without an alias
    "mooncake-store": "MooncakeStoreConnector",
    "mori": "MoriTransferEngineConnector",
    "nixl": "NixlConnector",
    "yuanrong": "YuanrongConnector",
    "yuanrong-te": "YuanrongTransferEngineConnector",
}
"""alias → connector name of what is right in a deploy file, but not part of this release."""

_loaded: dict[str, Backend] = {}


def register_backend(backend: Backend) -> None:
    """Make a backend known in this process, under its alias and its name."""
    _loaded[backend.alias] = backend
    _loaded[backend.name] = backend


def names() -> list[str]:
    """Every name and alias that :func:`backend_for` takes."""
    known = set(_loaded)
    for alias, (name, _) in _SHIPPED.items():
        known |= {alias, name}
    known |= {point.name for point in metadata.entry_points(group=GROUP)}
    return sorted(known)


def backend_for(name: str) -> Backend:
    """The backend of a connector name or alias.

    Raises:
        BackendUnavailable: a planned backend that nobody has announced yet.
        ConfigError: nobody has announced this name; tells the nearest known one.
    """
    backend = _loaded.get(name)
    if backend is not None:
        return backend
    for alias, (connector, target) in _SHIPPED.items():
        if name in (alias, connector):
            register_backend(_load(target))
            return _loaded[name]
    for point in metadata.entry_points(group=GROUP):
        register_backend(_load(point.value))
        if name in _loaded:
            return _loaded[name]
    if name in PLANNED or name in PLANNED.values():
        raise BackendUnavailable(
            f"{name} is not part of this release, and no installed package offers it",
            backend=name,
            remedy="install a package that offers it, or use SharedMemoryConnector on one host",
        )
    known = names()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"unknown connector {name!r}{hint} Known: {', '.join(known)}")


def _load(target: str) -> Backend:
    module, _, attribute = target.partition(":")
    backend = getattr(importlib.import_module(module), attribute)()
    if not isinstance(backend, Backend):
        raise ConfigError(f"{target} is not a Backend")
    return backend
