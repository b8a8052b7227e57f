"""Doubles against the wheels of those for whom they stand: `nox -s signatures` fetches these.

In: wheels in ``.nox/wheels``, or in the folder that ``OMNI_ASYNC_WHEELS`` names. Out: no name of ours that a wheel has not.
Never: downloads, imports what its machine cannot run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_async.testing.doubles import mori, signatures
from omni_async.testing.doubles.signatures import Parameter, Wheel

WHEELS = Path(os.environ.get("OMNI_ASYNC_WHEELS", Path(__file__).parents[2] / ".nox" / "wheels"))
MORI = {"1.0": "1.0.0", "1.2": "1.2.4"}
"""Interface → the version that stands for it."""
PYTHON_LAYER = ("IOEngine", "IOEngineSession")


def wheel(package: str, version: str) -> Wheel:
    found = sorted(WHEELS.glob(f"{package}-{version}-*.whl"))
    if not found:
        pytest.skip(
            f"no wheel of {package} {version} in {WHEELS.name}: nox -s signatures fetches it"
        )
    return Wheel(found[0])


def mori_drift(api: str, library: bytes, engine: str, module: str) -> list[str]:
    surface = mori.surface(api)
    told: list[str] = []
    for name in PYTHON_LAYER:
        told += signatures.differing_methods(surface[name], engine, name)
    exported = {*signatures.exported(module), *PYTHON_LAYER, "TransferStatus"}
    told += [f"mori.io has no {name}" for name in sorted(set(surface) - exported)]
    words = signatures.words_of(surface, leave_out=PYTHON_LAYER)
    told += [f"the library has no {word}" for word in signatures.missing_words(words, library)]
    return told


@pytest.fixture(params=list(MORI))
def mori_parts(request: pytest.FixtureRequest) -> tuple[str, bytes, str, str]:
    found = wheel("amd_mori", MORI[request.param])
    engine, module = map(found.text, ("mori/io/engine.py", "mori/io/__init__.py"))
    return request.param, found.bytes("mori/libmori_pybinds.so"), engine, module


def test_the_double_of_mori_has_nothing_that_the_wheel_has_not(
    mori_parts: tuple[str, bytes, str, str],
) -> None:
    assert mori_drift(*mori_parts) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda api, library, engine, module: (
                api,
                library.replace(b"\0SetMessage\0", b"\0SetMassage\0"),
                engine,
                module,
            ),
            ["the library has no SetMessage"],
        ),
        (
            lambda api, library, engine, module: (
                api,
                library.replace(b"\0num_events\0", b"\0num_evnets\0"),
                engine,
                module,
            ),
            ["the library has no num_events"],
        ),
        (
            lambda api, library, engine, module: (
                api,
                library,
                engine.replace("def deregister_memory", "def unregister_memory"),
                module,
            ),
            ["IOEngine has no method deregister_memory"],
        ),
        (
            lambda api, library, engine, module: (
                api,
                library,
                engine,
                module.replace("MemoryLocationType,", "MemoryPlaceType,"),
            ),
            ["mori.io has no MemoryLocationType"],
        ),
    ],
    ids=["method", "keyword", "python", "export"],
)
def test_a_name_that_has_changed_is_told(
    mori_parts: tuple[str, bytes, str, str], change: Callable[..., Any], told: list[str]
) -> None:
    assert mori_drift(*change(*mori_parts)) == told


# --- the check itself, without any wheel ----------------------------------------------------------

SOURCE = """
from elsewhere import *
from mori.cpp import One as Two, Three
class Engine:
    def __init__(self, key, config: "x.Config"): ...
    def wait(self, statuses, timeout_ms: int = -1) -> int: ...
    def many(self, *args, deep=None, **rest): ...
    def _own(self): ...
"""


class Engine:
    def __init__(self, key: str, config: Any) -> None: ...
    def wait(self, statuses: Any, timeout_ms: int = -1) -> None: ...
    def many(self, *args: Any, deep: Any = None, **rest: Any) -> None: ...
    def _other(self) -> None: ...


class Moved(Engine):
    def wait(self, statuses: Any, timeout_ms: int = 0) -> None: ...
    def gone(self) -> None: ...


def test_methods_are_compared_with_their_parameters() -> None:
    assert signatures.methods_of(SOURCE, "Engine") == signatures.offered(Engine)
    assert signatures.offered(Engine)["wait"] == [
        Parameter("statuses"),
        Parameter("timeout_ms", "-1"),
    ]
    assert list(signatures.differing_methods(Engine, SOURCE, "Engine")) == []
    assert list(signatures.differing_methods(Moved, SOURCE, "Engine")) == [
        "Engine has no method gone",
        "Engine.wait takes (statuses, timeout_ms=-1), and not (statuses, timeout_ms=0)",
    ]
    assert list(signatures.differing_methods(Engine, SOURCE, "Absent")) == [
        "there is no class Absent"
    ]
    assert signatures.exported(SOURCE) == {"*", "Two", "Three", "Engine"}


def test_words_stand_alone() -> None:
    assert signatures.missing_words(["pack", "unpack", "size"], b"\0unpack\0size\0") == ["pack"]


def test_a_wheel_tells_its_package(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the name of a wheel"):
        Wheel(tmp_path / "x.zip")
