"""Every chore of the project; `nox -l` lists them.

In: a clone and a Python. Out: sessions that install all they need, system libraries included.
Never: names a machine, an index or a path outside the clone.

PyTorch takes a gigabyte, so the sessions that need it share one environment, `.nox/shared`.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import shlex
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
SHARED = ROOT / ".nox" / "shared"
PEER = ROOT / ".nox" / "peer"
WHEELS = ROOT / ".nox" / "wheels"
# Wheels against which doubles are held, and for which Python they are.
READ = {
    "amd-mori==1.0.0": ["--python-version=3.12", "--platform=manylinux2014_x86_64"],
    "amd-mori==1.2.4": ["--python-version=3.10", "--platform=manylinux_2_35_x86_64"],
}
# Names the unpacked wheel of the other library for the tests that load its files.
PEER_WHEEL = "OMNI_ASYNC_PEER_WHEEL"
# Most tests wait for processes: more workers than cores, yet not so many that they starve each other.
WORKERS = ["-n", "3"]
MINIMAL_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
# Where it matters whether PyTorch is there.
WITHOUT_TORCH = [f"tests/{room}" for room in ("backends", "codec", "pool", "transport")]

# Extra -> library that the loader looks for -> Debian package that brings it.
SYSTEM_LIBRARIES = {
    "mooncake": {"ibverbs": "libibverbs1", "numa": "libnuma1", "curl": "libcurl4"},
}
# Groups of packages that ask for a PyTorch with CUDA and run without it, so nothing comes with them.
ALONE = ("nixl",)
VENDORS = (*SYSTEM_LIBRARIES, *ALONE)
# What a backend may be called -> the extra that it needs. The last one has no wheels for Python 3.13, where
# pip installs nothing for it.
BACKENDS = {
    **{name: name for name in VENDORS},
    "mooncake-store": "mooncake",
    "yuanrong": "yuanrong",
    "yuanrong-te": "yuanrong",
}
TESTED = ["demo", "mooncake", "nixl", "prometheus", "uvloop", "yuanrong"]

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests", "signatures", "lint", "layers", "types", "docs"]

# pyenv's shims answer for one version only; its own folders hold the others.
_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
os.environ["PATH"] = os.pathsep.join(
    [os.environ.get("PATH", ""), *(str(path) for path in sorted(_pyenv.glob("3.*/bin")))]
)


def _group(name: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(PYPROJECT, name)


def _system_libraries(session: nox.Session, extras: Sequence[str]) -> None:
    """Install what the loader does not find: by apt-get as root, else say how."""
    wanted = {lib: deb for name in extras for lib, deb in SYSTEM_LIBRARIES.get(name, {}).items()}
    missing = sorted({deb for lib, deb in wanted.items() if not ctypes.util.find_library(lib)})
    if not missing:
        return
    install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        session.error(f"system libraries are missing; run: sudo {shlex.join(install)}")
    session.run("apt-get", "update", external=True, silent=True)
    session.run(*install, external=True, env={"DEBIAN_FRONTEND": "noninteractive"})


def _shared(session: nox.Session, *groups: str, extras: Sequence[str]) -> str:
    """The shared environment's Python, with the package in place, extras and groups installed.

    What was installed is remembered by the text of pyproject.toml: a second call costs nothing.
    """
    _system_libraries(session, extras)
    alone = [package for name in ALONE if name in extras for package in _group(name)]
    python = str(SHARED / "bin" / "python")
    if not Path(python).exists():
        session.run(sys.executable, "-m", "virtualenv", "--quiet", str(SHARED), external=True)
    text = (ROOT / "pyproject.toml").read_bytes() + repr((groups, sorted(extras))).encode()
    stamp = SHARED / f"installed-{hashlib.sha256(text).hexdigest()[:16]}"
    if not stamp.exists():
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = [*_group("torch"), *(package for name in groups for package in _group(name))]
        wanted = ",".join(name for name in extras if name not in ALONE)
        session.run(*pip, "--editable", f".[{wanted}]", *pinned, external=True)
        if alone:
            session.run(*pip, "--no-deps", *alone, external=True)
        stamp.touch()
    return python


def _peer_wheel(session: nox.Session, python: str) -> Path:
    """The other library's published wheel, fetched once."""
    [wanted] = _group("peer")
    name, version = wanted.split("==")
    wheel = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(PEER.glob(wheel)):
        pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--dest", str(PEER), wanted]
        try:
            session.run(*pip, external=True)
        except CommandFailed:
            session.error(f"run `{shlex.join(pip)}` with a network: {wanted} was not fetched")
    return next(PEER.glob(wheel))


def _peer_unpacked(session: nox.Session, python: str) -> str:
    """A folder with that wheel, unpacked once: its deploy files, and connectors to speak with."""
    wheel = _peer_wheel(session, python)
    folder, half = wheel.with_suffix(".unpacked"), wheel.with_suffix(".half")
    if not folder.exists():
        shutil.rmtree(half, ignore_errors=True)
        with zipfile.ZipFile(wheel) as files:
            files.extractall(half)
        half.rename(folder)
    return str(folder)


def _wheels(session: nox.Session, python: str) -> None:
    """Wheels of vendors that no machine here can run, fetched once, to be read."""
    for wanted, tags in READ.items():
        package, _, version = wanted.partition("==")
        if list(WHEELS.glob(f"{package.replace('-', '_')}-{version}-*.whl")):
            continue
        pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--only-binary=:all:", "--dest", str(WHEELS), *tags, wanted]
        try:
            session.run(*pip, external=True)
        except CommandFailed:
            session.error(f"run `{shlex.join(pip)}` with a network: {wanted} was not fetched")


def _script(python: str) -> str:
    return str(Path(python).with_name("omni-async"))


def _twice(session: nox.Session, *command: str, args: Sequence[str]) -> None:
    """Run tests side by side; what failed there is told, and run once more on its own.

    Some tests stop and kill processes and expect others to notice in time. On a machine that is busy
    with their neighbours that may take longer than they allow.
    """
    try:
        session.run(*command, *args, external=True)
    except CommandFailed:
        session.warn("tests failed side by side, see above; they are run again on their own")
        session.run(*command, "--last-failed", "--last-failed-no-failures=none", external=True)


def _pytest(session: nox.Session, python: str, *args: str) -> None:
    """pytest under coverage, children included, then the report with its limit."""
    for old in ROOT.glob(".coverage*"):
        old.unlink()
    try:
        _twice(session, python, "-m", "coverage", "run", "-m", "pytest", args=args)
    finally:  # a failed run's report is worth reading too
        session.run(python, "-m", "coverage", "combine", "--quiet", external=True)
        session.run(python, "-m", "coverage", "report", external=True)


def _tested(session: nox.Session) -> str:
    """The Python that the whole suite runs on, with all that it needs."""
    python = _shared(session, "test", "images", "pd", extras=TESTED)
    if not os.environ.get(PEER_WHEEL):
        session.env[PEER_WHEEL] = _peer_unpacked(session, python)
    return python


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Three processes turn a recording into sound again: `nox -s demo [-- options]`.

    With `-- --backend mooncake` over that engine, or another or a store, which is installed for it.
    """
    vendors = {BACKENDS[name] for name in session.posargs if name in BACKENDS}
    python = _shared(session, extras=["demo", "uvloop", *sorted(vendors)])
    session.run(_script(python), "demo", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def pd(session: nox.Session) -> None:
    """Prefill and decode behind the real vllm-router: `nox -s pd [-- options]`.

    Every token is compared with a single process's. With `-- --backend mooncake` or `nixl` over that engine.
    """
    vendors = {BACKENDS[name] for name in session.posargs if name in BACKENDS}
    python = _shared(session, "pd", extras=["torch", *sorted(vendors)])
    command = [python, "-m", "examples.pd_disaggregation.run", *session.posargs]
    session.run(*command, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """The suite; with `-- options` just pytest with these options.

    Another library's deploy files and connectors are tested with: $OMNI_ASYNC_PEER_WHEEL, or
    fetched by pip. So is vllm-router.
    """
    python = _tested(session)
    if session.posargs:
        session.run(python, "-m", "pytest", *session.posargs, external=True)
    else:
        _twice(session, python, "-m", "pytest", args=WORKERS)


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """The same with branch coverage, children included, and its limit: a third slower."""
    _pytest(session, _tested(session), *WORKERS)


@nox.session(venv_backend="none")
def signatures(session: nox.Session) -> None:
    """Doubles have no name that the wheels have not for which they stand."""
    python = _shared(session, "test", "images", extras=TESTED)
    _wheels(session, python)
    held = ["tests/backends/test_signatures.py", "tests/backends/yuanrong_te/test_vendor.py"]
    session.run(python, "-m", "pytest", *held, external=True)


@nox.session(python=MINIMAL_PYTHONS, name="tests-minimal")
def tests_minimal(session: nox.Session) -> None:
    """The suite without PyTorch and without extras, on every Python that is there.

    The doubles' conformance runs are left to `tests` and the soak: pure Python, and long. So are, on every
    Python but the oldest, the parts that look alike with PyTorch and without. The Python that `tests` runs on is
    left out, unless it is the oldest.
    """
    oldest = session.python == MINIMAL_PYTHONS[0]
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if session.python == running and not oldest and not session.posargs:
        session.skip(f"`tests` runs on {running}; `-- tests` behind this one runs it all the same")
    session.install("--quiet", "--editable", ".", *_group("test"))
    args = session.posargs or [*WORKERS, "-k", "not Loopback and not Kept and not YuanrongTe"]
    if not session.posargs and not oldest:
        args += WITHOUT_TORCH
    _twice(session, "python", "-m", "pytest", args=args)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: mistakes and format."""
    session.install("--quiet", *_group("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def layers(session: nox.Session) -> None:
    """import-linter: which room may import which."""
    session.install("--quiet", "--editable", ".", *_group("layers"))
    session.run("lint-imports", "--no-cache", "--no-logo")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """mypy --strict and pyright."""
    python = _shared(session, "types", extras=["demo", "mooncake", "prometheus", "uvloop"])
    session.run(python, "-m", "mypy", external=True)
    session.run(python, "-m", "pyright", "--pythonpath", python, external=True)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Run every example in README and docs, then build the pages; warnings are errors."""
    python = _shared(session, "docs", extras=["demo", "mooncake", "prometheus", "uvloop"])
    examples = ["-p", "docs.examples", "README.md", "docs"]
    session.run(python, "-m", "pytest", *examples, external=True)
    build = ["-W", "--keep-going", "-q", "-b", "html", "docs", "docs/_build/html"]
    session.run(python, "-m", "sphinx", *build, external=True)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """A benchmark by name: `nox -s bench -- shm`; the other library comes from the index."""
    args = list(session.posargs or ["shm"])
    vendors = {"mooncake": "mooncake", "mooncake-store": "mooncake", "yuanrong": "yuanrong"}
    extras = [vendors[name] for name in args if name in vendors]
    python = _shared(session, "bench", extras=["demo", "uvloop", *extras])
    if args[0] in ("shm", "streams", *vendors) and "--peer" not in args:
        args += ["--peer", str(_peer_wheel(session, python))]
    session.run(_script(python), "bench", *args, external=True)


@nox.session(venv_backend="none", default=False)
def soak(session: nox.Session) -> None:
    """What takes long: hundreds of kills, long fuzzing, days of traffic in minutes."""
    python = _shared(session, "test", "images", "pd", extras=TESTED)
    session.run(
        python, "-m", "pytest", "-m", "soak", "--timeout=1800", *session.posargs, external=True
    )
