"""What is shipped, what an import costs, and that the README tells the truth about commands."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import resource
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "omni_async"
LAZY = ("torch", "zmq", "structlog", "anyio", "yaml", "prometheus_client", "rich", "PIL", "uvloop")
IMPORT_LIMIT = 0.150  # seconds above a bare interpreter


def python(code: str) -> str:
    """What a fresh interpreter prints, without coverage in it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_loads_nothing_heavy() -> None:
    loaded = python(f"import sys, omni_async; print([m for m in {LAZY!r} if m in sys.modules])")
    assert loaded == "[]\n"


def test_the_import_is_fast() -> None:
    def seconds(code: str) -> float:
        """Processor time: what else runs on this machine does not count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python(code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds("import omni_async")  # writes the bytecode
    pairs = [(seconds("pass"), seconds("import omni_async")) for _ in range(9)]
    bare, full = (statistics.median(column) for column in zip(*pairs, strict=True))
    assert full - bare < IMPORT_LIMIT, (
        f"{full * 1e3:.0f} ms, a bare interpreter {bare * 1e3:.0f} ms"
    )


def test_every_public_name_is_there_and_listed() -> None:
    names = python(
        "import omni_async\n"
        "assert all(hasattr(omni_async, name) for name in omni_async.__all__)\n"
        "assert set(omni_async.__all__) <= set(dir(omni_async))\n"
        "print(*omni_async.__all__)"
    ).split()
    contract = {
        "Capabilities", "ConnectorSpec", "Delivery", "Edge", "Health", "ManagedBuffer", "Receipt",
        "Transport", "load_deploy", "open_stage", "open_transport", "register_type",
    }  # fmt: skip
    errors = ast.parse((PACKAGE / "errors.py").read_text())
    contract |= {node.name for node in errors.body if isinstance(node, ast.ClassDef)}
    assert contract <= set(names)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    printed = python(
        "import omni_async\n"
        "try:\n    omni_async.no_such_name\n"
        "except AttributeError as error:\n    print(error)"
    )
    assert "no_such_name" in printed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_has_the_whole_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and not re.search(r"/\.|\.pyc$", str(path.relative_to(ROOT)))
    }
    assert sources <= names
    assert "omni_async/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"omni_async"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_extras_and_the_command_are_declared() -> None:
    metadata = importlib.metadata.metadata("omni-async")
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert extras >= {
        "cli", "demo", "mooncake", "mori", "nixl", "prometheus", "torch", "uvloop", "yuanrong",
    }  # fmt: skip
    [script] = importlib.metadata.entry_points(group="console_scripts", name="omni-async")
    assert script.value == "omni_async.cli.main:main"
    assert callable(script.load())


def test_the_commands_of_the_readme_are_those_that_are_checked() -> None:
    readme = (ROOT / "README.md").read_text()
    make, test = [line for line in readme.splitlines() if ".venv/bin/nox -s" in line][:2]
    assert make.startswith("python3 -m venv .venv && .venv/bin/pip install nox && ")
    assert test == ".venv/bin/nox -s tests"
    assert f"check {test} " in (ROOT / ".ci" / "run").read_text()


MODULES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py" and path.parent.name != "conformance"  # these are tests
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_takes_gives_and_never_does(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert re.findall(r"\s(In|Out|Never): ", text)[:3] == ["In", "Out", "Never"]
