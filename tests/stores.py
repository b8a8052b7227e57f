"""Servers of stores, for tests that need real ones.

In: a machine. Out: one server of each kind for a test session (or an xdist worker of it); a skip where its package
is not there. Never: shares a server that a test stops or kills: such a test starts its own.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from typing import TypeVar

import pytest

from omni_async.backends.mooncake_store._native import load_store
from omni_async.cli.servers import Server
from omni_async.cli.servers.mooncake import MooncakeMaster

S = TypeVar("S", bound=Server)


def loaded_or_skip(module: str) -> None:
    """Skip a test where a vendor's module cannot be loaded. It is loaded elsewhere: Mooncake's crashes a process
    that has loaded Yuanrong's."""
    if failure := _loading(module):
        pytest.skip(f"no {module}: {failure}")


@functools.cache
def _loading(module: str) -> str:
    """Why a module cannot be loaded; empty where it can."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True
    )
    return "" if done.returncode == 0 else (done.stderr.splitlines() or [""])[-1]


def mooncake_store_or_skip() -> None:
    """The same for Mooncake's, as it is loaded here: else it would say a lot on stderr from then on."""
    try:
        load_store("127.0.0.1")
    except ImportError as error:
        pytest.skip(f"no mooncake.store: {error}")


def served(server: S) -> Iterator[S]:
    """The server while it runs."""
    with server:
        yield server


@pytest.fixture(scope="session")
def mooncake_master() -> Iterator[MooncakeMaster]:
    """A master that nobody may stop."""
    mooncake_store_or_skip()
    yield from served(MooncakeMaster())
