"""Names and aliases: what opens, what is planned, what another package announces."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import pytest

from omni_async import BackendUnavailable, ConfigError, registry
from omni_async.abc import Options
from omni_async.backends.memory import MemoryBackend
from omni_async.backends.memory.config import MemoryOptions
from omni_async.backends.mooncake_store import MooncakeStoreOptions

VENDORS = ("mooncake", "yr", "datasystem", "mori", "nixl", "nixl_cu12", "torch", "zmq")


class OwnOptions(Options):
    """Those of the package below."""


class Later(MemoryBackend):
    """What an installed package offers under a planned name."""

    name = "LaterConnector"
    alias = "later"
    options = OwnOptions


@pytest.fixture
def clean() -> Iterator[None]:
    """The registry as it was, whatever a test announces."""
    before = dict(registry._loaded)
    registry._announced.cache_clear()
    yield
    registry._loaded.clear()
    registry._loaded.update(before)
    registry._announced.cache_clear()


def announce(monkeypatch: pytest.MonkeyPatch, **backends: str) -> None:
    points = [metadata.EntryPoint(*item, registry.GROUP) for item in backends.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    registry._announced.cache_clear()


def test_planned_names_are_no_names_that_open(later: str) -> None:
    planned = registry.planned_names()
    assert {"later", later} <= set(planned)
    assert {"mooncake", "mooncake-store", "MooncakeConnector", "mori"} <= set(registry.names())
    assert not set(planned) & set(registry.names())


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("name", [*registry.planned_names(), "later", "LaterConnector"])
def test_a_planned_connector_has_options_and_does_not_open(name: str) -> None:
    assert issubclass(registry.options_for(name), Options)
    assert registry.canonical(name).endswith("Connector")
    with pytest.raises(BackendUnavailable) as caught:
        registry.backend_for(name)
    assert caught.value.backend == name


def test_one_connector_under_all_its_names() -> None:
    for name in ("mooncake-store", "MooncakeStoreConnector", "MooncakeConnector"):
        assert registry.canonical(name) == "MooncakeStoreConnector"
        assert registry.options_for(name) is MooncakeStoreOptions
    assert registry.canonical("shm") == registry.canonical("SharedMemoryConnector")


@pytest.mark.parametrize("ask", [registry.options_for, registry.canonical, registry.backend_for])
def test_an_unknown_name(ask: object) -> None:
    with pytest.raises(ConfigError, match="did you mean 'memory'"):
        ask("memry")  # type: ignore[operator]


@pytest.mark.usefixtures("clean")
def test_an_installed_package_offers_a_planned_connector(
    monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    assert registry.options_for("later") is MemoryOptions
    announce(
        monkeypatch,
        memory="omni_async.backends.memory:MemoryBackend",
        later=f"{__name__}:Later",
    )
    assert registry.options_for(later) is OwnOptions
    assert registry.backend_for("later").name == later
    assert "later" not in registry.planned_names()


@pytest.mark.usefixtures("clean")
def test_what_is_announced_has_to_be_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, odd="builtins:object")
    assert "odd" in registry.names()
    with pytest.raises(ConfigError, match="is not a Backend"):
        registry.backend_for("odd")


def test_asking_for_options_imports_no_vendor() -> None:
    code = (
        "import sys; from omni_async import registry\n"
        "for name in registry.names() + registry.planned_names(): registry.options_for(name)\n"
        f"print([word for word in {VENDORS!r} if word in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
