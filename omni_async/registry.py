"""Connector names and aliases to backends.

In: a name from a deploy YAML or a short alias. Out: the backend behind it.
Never: imports a backend that nobody asked for.

Backends of other packages announce themselves by entry points of the group ``omni_async.backends``:
``alias = "package.module:BackendClass"``; the entry point's name is the alias, the class tells the rest.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from importlib import metadata
from typing import Any

from .abc import Backend, Options
from .errors import BackendUnavailable, ConfigError

GROUP = "omni_async.backends"

_SHIPPED = {
    "shm": ("SharedMemoryConnector", "omni_async.backends.shm:SharedMemoryBackend"),
    "memory": ("MemoryConnector", "omni_async.backends.memory:MemoryBackend"),
    "mooncake": (
        "MooncakeTransferEngineConnector",
        "omni_async.backends.mooncake:MooncakeTransferEngineBackend",
    ),
    "mooncake-store": (
        "MooncakeStoreConnector",
        "omni_async.backends.mooncake_store:MooncakeStoreBackend",
    ),
    "mori": ("MoriTransferEngineConnector", "omni_async.backends.mori:MoriTransferEngineBackend"),
    "nixl": ("NixlConnector", "omni_async.backends.nixl:NixlBackend"),
    "yuanrong": ("YuanrongConnector", "omni_async.backends.yuanrong:YuanrongBackend"),
    "yuanrong-te": (
        "YuanrongTransferEngineConnector",
        "omni_async.backends.yuanrong_te:YuanrongTransferEngineBackend",
    ),
}
"""alias → (connector name, where it is)."""

PLANNED: dict[str, tuple[str, str]] = {}
"""alias → (connector name, where its options are) of what is right in a deploy file, but not part of
this release."""

_OLDER = {"MooncakeConnector": "MooncakeStoreConnector"}
"""Older names in deploy files."""

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
    known |= {point.name for point in _announced()}
    known |= {older for older, name in _OLDER.items() if name in known}
    return sorted(known)


def aliases() -> list[str]:
    """The alias of every backend that is shipped, planned, or announced by an installed package."""
    return [*dict.fromkeys([*_SHIPPED, *PLANNED, *(point.name for point in _announced())])]


def planned_names() -> list[str]:
    """Names and aliases that a deploy file may use though nothing opens them yet."""
    planned = {*PLANNED, *_OLDER, *(name for name, _ in PLANNED.values())}
    return sorted(planned.difference(names()))


def backend_for(name: str) -> Backend:
    """The backend of a connector name or alias.

    Raises:
        BackendUnavailable: a planned backend that nobody has announced yet.
        ConfigError: nobody has announced this name; tells the nearest known one.
    """
    backend = _found(_OLDER.get(name, name))
    if backend is not None:
        return backend
    if _planned(name) is not None:
        raise BackendUnavailable(
            f"{name} is not part of this release, and no installed package offers it",
            backend=name,
            remedy="install a package that offers it, or use SharedMemoryConnector on one host",
        )
    known = names()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"unknown connector {name!r}{hint} Known: {', '.join(known)}")


def options_for(name: str) -> type[Options]:
    """The options model of a connector name or alias, planned ones included. No vendor is imported.

    Raises:
        ConfigError: nobody has announced this name.
    """
    planned = _planned(name)
    backend = _found(_OLDER.get(name, name)) if planned else backend_for(name)
    if backend is not None:
        return backend.options
    assert planned is not None
    model: type[Options] = _attribute(planned[1])
    return model


def canonical(name: str) -> str:
    """The connector name behind an alias or an older name.

    Raises:
        ConfigError: nobody has announced this name.
    """
    planned = _planned(name)
    return planned[0] if planned else backend_for(name).name


def _found(name: str) -> Backend | None:
    if name in _loaded:
        return _loaded[name]
    for alias, (connector, target) in _SHIPPED.items():
        if name in (alias, connector):
            register_backend(_load(target))
            return _loaded[name]
    for point in _announced():
        register_backend(_load(point.value))
        if name in _loaded:
            return _loaded[name]
    return None


def _planned(name: str) -> tuple[str, str] | None:
    name = _OLDER.get(name, name)
    for alias, (connector, target) in PLANNED.items():
        if name in (alias, connector):
            return connector, target
    return None


@functools.cache
def _announced() -> tuple[metadata.EntryPoint, ...]:
    """Looked up once: what is installed does not change under a running process."""
    return tuple(metadata.entry_points(group=GROUP))


def _attribute(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _load(target: str) -> Backend:
    backend = _attribute(target)()
    if not isinstance(backend, Backend):
        raise ConfigError(f"{target} is not a Backend")
    return backend
